# C types for future.py, which Cython compiles as ebbpool._core.future_c.
from ebbpool._core.native_c cimport CANCELLED, FINISHED, NOTIFIED, PENDING, RUNNING, awaited
from ebbpool._core.pool_c cimport _ORPHANS, Pool
from ebbpool._core.task_c cimport Task

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


cdef class FutureCore(Task):
    cpdef bint _conclude(self, int first, int last, int code, object value, object error) except -1
    cdef list _move(self, int first, int last, int code, object value, object error)
    cdef _tell(self, list audience)
    cdef _call_back(self, list audience)
    cdef _wait_for_outcome(self, object timeout)
    cdef _await(self, object timeout)
    cdef _ignore(self, object waiter)
    cdef _forget(self)
    cpdef _drop_call(self)
    cdef _join(self, list alone)
