# C types for _core.py, which Cython compiles as ebbpool._core_c.
cimport cython
from cpython.time cimport monotonic

cdef extern from *:
    """
    #if !defined(Py_GIL_DISABLED)
    #define ebbpool_fence() ((void)0)
    #elif defined(_MSC_VER)
    #include <windows.h>
    #define ebbpool_fence() MemoryBarrier()
    #else
    #define ebbpool_fence() __atomic_thread_fence(__ATOMIC_SEQ_CST)
    #endif
    """
    void fence "ebbpool_fence"() noexcept nogil

cdef inline void breathe() noexcept:
    with nogil:
        pass

cdef int PENDING, RUNNING, CANCELLED, NOTIFIED, FINISHED
cdef tuple STATES, DESCRIPTIONS
cdef str START, EXTRA, HASTE, WATCH
cdef Pool _ORPHANS


cdef class FutureCore:
    cdef int _code
    cdef object _value
    cdef object _error
    cdef object _fn
    cdef object _args
    cdef object _kwargs
    cdef double _since
    cdef Pool _pool
    cdef list _audience
    cdef object _cond
    cdef object _observers

    cpdef bint _conclude(self, int first, int last, int code, object value, object error) except -1
    cdef list _move(self, int code, object value, object error)
    cdef disown(self, object error)
    cdef _tell(self, list audience)
    cdef _settle(self, object timeout)
    cdef _await(self, object timeout)
    cdef _await_condition(self, object timeout)
    cdef _ignore(self, object waiter)


cdef class Pool:
    cdef cython.pymutex mutex
    cdef readonly object crew
    cdef object queue
    cdef object enqueue
    cdef object dequeue
    cdef list parked
    cdef list workers
    cdef object seekers
    cdef list idlers
    cdef readonly Py_ssize_t min_workers
    cdef readonly Py_ssize_t max_workers
    cdef readonly Py_ssize_t min_spare_workers
    cdef readonly double patience
    cdef readonly Py_ssize_t max_queue
    cdef readonly bint rejecting
    cdef public bint contextual
    cdef public bint slow_start
    cdef bint special
    cdef readonly bint closed
    cdef readonly bint broken
    cdef readonly bint searching
    cdef readonly bint covered
    cdef readonly bint at_ceiling
    cdef bint hurry
    cdef readonly Py_ssize_t roused
    cdef bint turned_away
    cdef double clock
    cdef readonly Py_ssize_t headcount
    cdef readonly Py_ssize_t starting
    cdef readonly Py_ssize_t blocked
    cdef readonly Py_ssize_t surplus
    cdef readonly Py_ssize_t dead
    cdef readonly long long taken
    cdef readonly long long failed
    cdef readonly long long cancelled
    cdef readonly long long rejected
    cdef readonly long long started
    cdef readonly long long retired

    cpdef push(self, FutureCore future)
    cdef _replace_queue(self, object queue)
    cdef _refusal(self)
    cdef _arrange(self)
    @cython.locals(worker=Worker)
    cdef _rouse(self)
    cdef _spare(self)
    @cython.locals(worker=Worker)
    cdef _rouse_all(self)
    cdef _run(self, object errand, FutureCore future)
    cdef _unpark(self, Worker worker)
    cdef _watch(self)
    cdef _strand(self, object refusal)
    cdef Py_ssize_t _waiting(self) except -1
    cdef Py_ssize_t _demand(self) except -1
    cdef Py_ssize_t _at_hand(self) except -1
    cdef bint _lacks_spare(self) except -1
    cdef _special(self)
    cdef _measure(self)
    cdef _uncover(self)
    cdef _reserve(self, Py_ssize_t count)
    cpdef bint unreserve(self, bint searching, FutureCore future, bint bounded) except -1
    cdef _arrived(self, Worker worker)
    cdef _clear(self, Worker worker)
    cdef _rest(self, Worker worker)
    cdef _remove(self, Worker worker)
    cdef expire(self, Worker worker)
    cdef bury(self, int code)
    cdef _release_seekers(self)
    cdef count_aside(self, bint failed)
    @cython.locals(worker=Worker)
    cdef bint _idle(self) except -1
    cdef _tell_idlers(self)
    cdef bint _await(self, Py_ssize_t remaining, double timeout) except -1
    cdef _trim(self, list trash)


cdef class Worker:
    cdef readonly Pool pool
    cdef object mailbox
    cdef public object thread
    cdef FutureCore current
    cdef double since
    cdef double patience
    cdef bint parked
    cdef bint roused
    cdef bint searching
    cdef bint starting
    cdef bint fresh
    cdef bint expired
    cdef bint leaving


cdef class ExecutorCore:
    cdef public Pool pool
