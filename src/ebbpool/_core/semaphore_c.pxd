# C types for semaphore.py, which Cython compiles as ebbpool._core.semaphore_c.
cimport cython
from cpython.time cimport monotonic
from ebbpool._core.native_c cimport fence  # which brings the way to take a mutex

cdef object ONE
cdef Py_ssize_t MOST
cdef long long _forks
cdef unsigned long _survivor


cdef class Waiter:
    cdef object bell
    cdef bint rung, granted, starved
    cdef unsigned long thread
    cdef long long forks


cdef class SemaphoreCore:
    cdef cython.pymutex _mutex
    cdef Py_ssize_t _permits
    cdef public Py_ssize_t _initial_value
    cdef readonly list _waiters

    @cython.locals(count=Py_ssize_t, excess=bint)
    cpdef release(self, object n=*)
    cdef _check_made(self)
    @cython.locals(waiter=Waiter, limit=double, deadline=double, told=bint, over=bint)
    cdef bint _wait(self, object timeout) except -1
    cdef _strike(self, Waiter waiter)
    @cython.locals(head=Waiter)
    cdef Waiter _head(self)
    @cython.locals(head=Waiter, handed=bint)
    cdef _serve(self, bint hand_over)
