# C types for task.py, which Cython compiles as ebbpool._core.task_c.
cimport cython
from ebbpool._core.known_c cimport Known
from ebbpool._core.native_c cimport PENDING, shared_bint, shared_int

cdef Py_ssize_t COMPACT


cdef class Line:
    cdef readonly bint queued
    cdef object tasks, append, popleft
    cdef readonly Py_ssize_t dead

    cdef Py_ssize_t live(self) except? -1
    cdef add(self, Task task)
    cdef trim(self, list trash)
    cdef compact(self, list trash)


cdef class Tally:
    cdef readonly long long taken, failed, cancelled, expired


cdef class LaneCore:
    cdef object __weakref__
    cdef readonly object pool
    cdef readonly Line backlog
    cdef readonly Tally tally
    cdef readonly Py_ssize_t limit, admitted
    cdef readonly bint first, lifts_ceiling
    cdef readonly shared_bint closed
    cdef readonly object name
    cdef readonly double max_wait

    cdef renew(self)


cdef class Task:
    cdef shared_int _code
    cdef public object _result, _exception
    cdef object _fn, _args, _kwargs, _scope, _pool, _cond, _observers, _not_run, _executor
    cdef list _audience
    cdef LaneCore _lane
    cdef Line _line
    cdef double _queued_at, _latest
    cdef bint _looped, _short
    cdef Known _known
    cdef Py_ssize_t _task

    cpdef limit(self, object scope)
    cdef object _packed(self)
    cdef object _take_context(self)
