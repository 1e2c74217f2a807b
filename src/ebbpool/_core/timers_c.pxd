# C types for timers.py, which Cython compiles as ebbpool._core.timers_c.
from ebbpool._core.executor_core_c cimport ExecutorCore
from ebbpool._core.future_c cimport FutureCore
from ebbpool._core.native_c cimport CANCELLED, fence, shared_bint, shared_double

cdef Py_ssize_t FOLD, VOID


cdef class Alarms:
    cdef object _arrived, _arrive, _voids, _numbers
    cdef list _even, _odd
    cdef bint _even_is_stale

    cpdef bint add(self, double due, object book, object thing) except -1
    cdef bint _half_void(self) except -1
    cdef bint _needs_sweep(self) except -1
    cdef Py_ssize_t _count(self) except? -1
    cpdef bint merge(self) except -1
    cpdef bint arrived(self) except -1
    cdef list _fresh(self)
    cdef list _stale(self)
    cdef list _first(self)


cdef class KeeperCore:
    cdef readonly object clock
    cdef public shared_bint exiting, _runs
    cdef public Alarms _alarms
    cdef public shared_double _wake
    cdef public object _bell

    cpdef call_at(self, double due, object book, object thing)


cdef class Timers:
    cdef readonly KeeperCore keeper
    cdef readonly dict waiting
    cdef public object schedules

    cpdef prepare(self)
    cpdef add(self, ExecutorCore executor, FutureCore future, double due)
    cpdef bint wants(self, FutureCore thing) except -1
