# C types for lane.py, which Cython compiles as ebbpool._core.lane_c.
cimport cython
from cpython.time cimport monotonic
from ebbpool._core.future_c cimport FutureCore
from ebbpool._core.native_c cimport PENDING, hold_collector, let_collector
from ebbpool._core.pool_c cimport Pool
from ebbpool._core.worker_c cimport Worker


cdef class LaneCore:
    cdef object __weakref__, backlog
    cdef readonly Pool pool
    cdef readonly Py_ssize_t limit, admitted, dead
    cdef readonly bint first, lifts_ceiling, closed
    cdef readonly object name
    cdef readonly double max_wait
    cdef readonly long long taken, failed, cancelled, expired

    cdef enter(self)
    cdef leave(self)
    cdef renew(self)
    cdef enlist(self, FutureCore future, object refusal)
    @cython.locals(future=FutureCore, worker=Worker)
    cpdef counts(self)
