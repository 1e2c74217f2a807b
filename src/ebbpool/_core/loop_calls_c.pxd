# C types for loop_calls.py, which Cython compiles as ebbpool._core.loop_calls_c.
cimport cython
from cpython.time cimport monotonic
from ebbpool._core.future_c cimport FutureCore
from ebbpool._core.native_c cimport CANCELLED, FINISHED, NOTIFIED, PENDING, shared_count, shared_double, shared_size
from ebbpool._core.pool_c cimport Pool
from ebbpool._core.task_c cimport Line
from libc.math cimport log2

cdef bint GIL
cdef Py_ssize_t BACKLOG, DELIVERED_AT_ONCE, FEWEST, LAST
cdef double SLICE


cdef class LoopCall(FutureCore)
cdef class Mailbox


cdef class LoopCall(FutureCore):
    cdef Mailbox _mailbox
    cdef object _ticket, _context
    cdef long long _rings

    cpdef deliver(self)


cdef class Relay(LoopCall):
    cpdef deliver(self)


cdef class Mailbox:
    cdef cython.pymutex mutex
    cdef object wake, again, arrived, __weakref__
    cdef readonly object task
    cdef readonly list lags, most
    cdef public object lane
    cdef readonly shared_count rings, come
    cdef readonly shared_double rung, turn
    cdef double stint_begun, stint_spent, nap_after, spent, longest
    cdef Py_ssize_t nap_at, due, portion, delivered, first
    cdef readonly shared_size spell

    @cython.locals(late=bint, many=bint, rings=bint, ring="long long")
    cpdef post(self, LoopCall call)
    cdef bint _comes(self, long long ring) except -1
    @cython.locals(lag=double, bucket=Py_ssize_t)
    cpdef note(self, double rung, double now)
    @cython.locals(ring="long long")
    cdef _go_on(self)
