# C types for future.py, which Cython compiles as ebbpool._core.future_c.
from ebbpool._core.native_c cimport CANCELLED, FINISHED, NOTIFIED, PENDING, RUNNING, awaited, fence

# Before the imports that form a circle: what the others of the circle import from here. Types are known in any order.
cdef tuple STATES, DESCRIPTIONS, _EMPTY
cdef list _NOBODY
cdef object _here, _Future, _bare, _interpreted, _relayed

# Passes the interpreter's eval breaker, where another thread gets the GIL, asynchronous exceptions are raised, and the
# garbage collector runs. Compiled code that calls built-in functions never does so by itself. Giving the GIL up and
# taking it back would not help: the thread that waits for it wakes too late, finds it taken, and begins its wait anew.
cdef inline int breathe() except -1:
    if awaited():
        _interpreted()
    return 0

from ebbpool._core.known_c cimport Known
from ebbpool._core.lane_c cimport LaneCore
from ebbpool._core.pool_c cimport _ORPHANS, Pool


cdef class FutureCore:
    cdef int _code
    cdef public object _result, _exception
    cdef object _fn, _args, _kwargs, _cond, _observers, _not_run, _scope, _executor
    cdef bint _held, _looped, _short
    cdef double _queued_at, _latest
    cdef Pool _pool
    cdef list _audience
    cdef Known _known
    cdef Py_ssize_t _task
    cdef LaneCore _lane

    cpdef bint _conclude(self, int first, int last, int code, object value, object error) except -1
    cdef list _move(self, int first, int last, int code, object value, object error)
    cdef _tell(self, list audience)
    cdef _call_back(self, list audience)
    cdef _wait_for_outcome(self, object timeout)
    cdef _await(self, object timeout)
    cdef _ignore(self, object waiter)
    cpdef limit(self, object scope)
    cdef _forget(self)
    cdef _drop_call(self)
    cdef object _packed(self)
    cdef _join(self, list alone)
    cdef object _take_context(self)
