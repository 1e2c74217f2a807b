# C types for engine.py, which Cython compiles as ebbpool._core.engine_c.
cimport cython
from cpython.time cimport monotonic
from libc.math cimport log2
from ebbpool._core.memory_c cimport fence

cdef class Pool
cdef class FutureCore

cdef extern from *:
    """
    /* Frees a mutex and returns whether it was taken; only where there is one thread. Cython's mutex has either type. */
    #if PY_VERSION_HEX > 0x030d0000
    #include <string.h>
    static CYTHON_INLINE int ebbpool_free_mutex(PyMutex *mutex)
    {
        static const PyMutex untouched = {0};
        int taken = memcmp(mutex, &untouched, sizeof untouched) != 0;
        memcpy(mutex, &untouched, sizeof untouched);
        return taken;
    }
    #else
    static CYTHON_INLINE int ebbpool_free_mutex(PyThread_type_lock *mutex)
    {
        int taken = !PyThread_acquire_lock(*mutex, NOWAIT_LOCK);
        PyThread_release_lock(*mutex);
        return taken;
    }
    #endif
    #define ebbpool_free_mutex_of(owner) ebbpool_free_mutex(&(owner)->mutex)

    /* From 3.12 on the collector runs at the eval breaker alone, where compiled code does not pass under a mutex. */
    #if PY_VERSION_HEX < 0x030C0000
    #define ebbpool_hold_collector() PyGC_Disable()
    #define ebbpool_let_collector(collects) ((void)((collects) && PyGC_Enable()))
    #else
    #define ebbpool_hold_collector() 0
    #define ebbpool_let_collector(collects) ((void)(collects))
    #endif

    /* The lowest byte holds the events that wait to be handled by the interpreter. */
    #if PY_VERSION_HEX >= 0x030D0000 && PY_VERSION_HEX < 0x03100000
    #define ebbpool_awaited() ((*(volatile uintptr_t *)&PyThreadState_GetUnchecked()->eval_breaker & 0xFF) != 0)
    #else
    static unsigned int ebbpool_turns = 0;
    #define ebbpool_awaited() ((++ebbpool_turns & 15) == 0)
    #endif
    """
    # Under a mutex, around code that makes objects known to the collector: it runs any code, which may need the mutex.
    # No other thread runs in between, for it has no GIL.
    bint hold_collector "ebbpool_hold_collector"() noexcept
    void let_collector "ebbpool_let_collector"(bint collects) noexcept
    bint free_mutex "ebbpool_free_mutex_of"(Pool pool) noexcept
    # Whether this thread should pass the eval breaker; one time in 16 where the interpreter does not tell.
    bint awaited "ebbpool_awaited"() noexcept nogil

cdef extern from *:
    """
    /* The type's version changes when ThreadPoolExecutor.submit is replaced, the code when that function gets another. */
    static volatile unsigned int *ebbpool_tag;
    static unsigned int ebbpool_known_tag;
    static PyObject *volatile *ebbpool_code;
    static PyObject *ebbpool_known_code;

    static CYTHON_INLINE unsigned int ebbpool_version(PyObject *type) {
        return *(volatile unsigned int *)&((PyTypeObject *)type)->tp_version_tag;
    }

    static CYTHON_INLINE void ebbpool_remember(PyObject *type, unsigned int tag, PyObject *function, PyObject *code) {
        if (tag == 0) {
            /* The type has had too many versions and gets no more. */
            ebbpool_tag = NULL;
            return;
        }
        ebbpool_known_tag = tag;
        ebbpool_known_code = code;
        ebbpool_code = &((PyFunctionObject *)function)->func_code;
        ebbpool_tag = &((PyTypeObject *)type)->tp_version_tag;
    }

    static CYTHON_INLINE int ebbpool_altered(void) {
        return ebbpool_tag == NULL || *ebbpool_tag != ebbpool_known_tag || *ebbpool_code != ebbpool_known_code;
    }
    """
    unsigned int version "ebbpool_version"(object type) noexcept
    void remember "ebbpool_remember"(object type, unsigned int tag, object function, object code) noexcept
    bint altered "ebbpool_altered"() noexcept nogil

cdef extern from *:
    """
    /* base.__new__(type), without a search for the method and a tuple of arguments. */
    #define ebbpool_blank(base, type, empty) \
        ((void *)((PyTypeObject *)(base))->tp_new((PyTypeObject *)(type), empty, NULL))

    /* fn(*args), as the interpreter itself calls. */
    static CYTHON_INLINE PyObject *ebbpool_called(PyObject *fn, PyObject *args) {
        if (!PyTuple_CheckExact(args)) {
            PyErr_SetString(PyExc_TypeError, "the arguments of a call must be a tuple");
            return NULL;
        }
        return PyObject_Vectorcall(fn, ((PyTupleObject *)args)->ob_item, (size_t)PyTuple_GET_SIZE(args), NULL);
    }
    """
    FutureCore blank "ebbpool_blank"(object base, object type, tuple empty)
    object called "ebbpool_called"(object fn, object args)
    object called_with "PyObject_CallOneArg"(object fn, object argument)

cdef extern from "Python.h":
    int enter "PyContext_Enter"(object context) except -1
    int leave "PyContext_Exit"(object context) except -1

# Passes the interpreter's eval breaker, where another thread gets the GIL, asynchronous exceptions are raised, and the
# garbage collector runs. Compiled code that calls built-in functions never does so by itself. Giving the GIL up and
# taking it back would not help: the thread that waits for it wakes too late, finds it taken, and begins its wait anew.
cdef inline int breathe() except -1:
    if awaited():
        _interpreted()
    return 0

cdef object _interpreted
cdef bint GIL

cdef int PENDING, RUNNING, CANCELLED, NOTIFIED, FINISHED
cdef tuple STATES, DESCRIPTIONS
cdef str START, EXTRA, HASTE, WATCH, _mailbox_name
cdef Py_ssize_t COMPACT, SEARCHED, DELIVERED_AT_ONCE, FEWEST, LAST, TURNS, ROOM
cdef double SLICE
cdef list _NOBODY
cdef tuple _EMPTY
cdef Pool _ORPHANS
cdef object _get_loop, _make_mailbox, _LoopFuture
cdef object _Standard, _own, _own_code, _Future, _DelayedFuture, _bare
cdef list _kept

@cython.locals(place=Py_ssize_t, alone=bint)
cdef bint _is_marked(FutureCore future, object mark) except -1
@cython.locals(call=LoopCall)
cdef object _context_of(FutureCore future)
cdef tuple _call_of(FutureCore future, bint known)
cpdef bint instrumented() except -1
cdef bint _replaced() except -1


cdef class FutureCore:
    cdef int _code
    cdef object _value
    cdef object _error
    cdef object _fn
    cdef object _args
    cdef object _kwargs
    cdef bint _held
    cdef double _queued_at
    cdef Pool _pool
    cdef list _audience
    cdef object _cond
    cdef object _observers
    cdef object _not_run
    cdef LaneCore _lane

    cpdef bint _conclude(self, int first, int last, int code, object value, object error) except -1
    cdef list _move(self, int first, int last, int code, object value, object error)
    cpdef disown(self, object error)
    cdef _tell(self, list audience)
    cdef _wait_for_outcome(self, object timeout)
    cdef _await(self, object timeout)
    cdef _await_condition(self, object timeout)
    cdef _ignore(self, object waiter)
    cdef _forget(self)
    cdef _drop_call(self)
    cdef object _packed(self)
    cdef _join(self, list alone)


cdef class DelayedCall(FutureCore):
    cdef object _executor


cdef class LoopCall(FutureCore):
    cdef Mailbox _mailbox
    cdef object _ticket
    cdef object _context

    cpdef deliver(self)


cdef class Mailbox:
    cdef cython.pymutex mutex
    cdef object wake
    cdef object again
    cdef list arrived
    cdef object due
    cdef object __weakref__
    cdef readonly bint ringing
    cdef readonly double rung
    cdef double stint_begun
    cdef double stint_spent
    cdef double patience
    cdef Py_ssize_t portion
    cdef Py_ssize_t delivered
    cdef double spent
    cdef readonly object lags
    cdef readonly object most
    cdef readonly Py_ssize_t spell
    cdef Py_ssize_t first
    cdef double longest
    cdef readonly double turn

    cpdef post(self, LoopCall call)
    cdef list _empty(self, bint ringing)
    @cython.locals(lag=double, bucket=Py_ssize_t)
    cpdef note(self, double rung, double now)
    cdef _go_on(self)


cdef class LaneCore:
    cdef object __weakref__
    cdef readonly Pool pool
    cdef readonly Py_ssize_t limit
    cdef readonly bint first
    cdef readonly bint lifts_ceiling
    cdef readonly object name
    cdef readonly bint closed
    cdef object backlog
    cdef readonly Py_ssize_t admitted
    cdef readonly Py_ssize_t dead
    cdef readonly long long taken
    cdef readonly long long failed
    cdef readonly long long cancelled

    cdef enter(self)
    cdef leave(self)
    cdef renew(self)
    cdef enlist(self, FutureCore future, object refusal)


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
    cdef readonly Py_ssize_t ceiling
    cdef readonly Py_ssize_t max_workers
    cdef readonly Py_ssize_t min_spare_workers
    cdef readonly double patience
    cdef readonly Py_ssize_t max_queue
    cdef readonly bint rejecting
    cdef readonly bint contextual
    cdef bint wrapping
    cdef Py_ssize_t every
    cdef object record
    cdef Py_ssize_t skip
    cdef public bint slow_start
    cdef bint special
    cdef readonly bint closed
    cdef readonly bint broken
    cdef readonly bint searching
    cdef readonly bint covered
    cdef readonly bint at_ceiling
    cdef readonly Py_ssize_t roused
    cdef bint turned_away
    cdef double clock
    cdef readonly Py_ssize_t headcount
    cdef readonly Py_ssize_t lent
    cdef readonly Py_ssize_t starting
    cdef readonly Py_ssize_t blocked
    cdef readonly Py_ssize_t surplus
    cdef readonly Py_ssize_t allowed
    cdef public Py_ssize_t crowd
    cdef bint minded
    cdef bint tight
    cdef bint held
    cdef readonly Py_ssize_t dead
    cdef Py_ssize_t ahead
    cdef Py_ssize_t passed
    cdef list promised
    cdef readonly long long taken
    cdef readonly long long failed
    cdef readonly long long cancelled
    cdef readonly long long rejected
    cdef readonly long long started
    cdef readonly long long retired
    cdef readonly dict away
    cdef readonly long long spilled
    cdef readonly long long returned
    cdef object mark
    cdef dict marked

    cdef tuple wrap(self, object fn, tuple args, object kwargs, bint contextual)
    @cython.locals(lane=LaneCore)
    cpdef push(self, FutureCore future, bint first=*, object waiter=*, bint in_line=*)
    cdef _enter(self, FutureCore future, bint first)
    @cython.locals(oldest=FutureCore)
    cdef FutureCore _next(self)
    cdef _make_room(self)
    cdef _vacate(self, LaneCore lane, bint failed)
    @cython.locals(future=FutureCore)
    cdef _admit(self, LaneCore lane)
    cdef _withdraw(self, FutureCore future)
    @cython.locals(head=FutureCore, future=FutureCore)
    cdef FutureCore _oldest(self)
    cdef _use_queue(self)
    cdef _refusal(self)
    cdef _arrange(self)
    cdef _staff(self)
    @cython.locals(worker=Worker)
    cdef _rouse(self)
    cdef _spare(self)
    cdef Py_ssize_t _engaged(self) except -1000000
    cdef bint _crowded(self) except -1
    cdef bint _has_room(self) except -1
    cdef bint _admits(self) except -1
    @cython.locals(worker=Worker)
    cdef _rouse_all(self)
    cdef _run(self, object errand, FutureCore future)
    cdef _unpark(self, Worker worker)
    cdef _watch(self)
    cdef Py_ssize_t _waiting(self) except -1
    cdef Py_ssize_t _demand(self) except -1
    cdef Py_ssize_t _at_hand(self) except -1
    cdef bint _lacks_spare(self) except -1
    cdef _special(self)
    cdef _measure(self)
    cdef _uncover(self)
    cdef _lend(self, Py_ssize_t places)
    cdef _reserve(self, Py_ssize_t count)
    cpdef bint unreserve(self, bint searching, FutureCore future, bint bounded) except -1
    cdef _arrived(self, Worker worker)
    cdef _clear(self, Worker worker)
    cdef _rest(self, Worker worker)
    cdef _remove(self, Worker worker)
    cdef expire(self, Worker worker)
    @cython.locals(lane=LaneCore)
    cdef bury(self, FutureCore future, int code)
    cdef count_aside(self, bint failed)
    @cython.locals(worker=Worker)
    cdef bint _idle(self) except -1
    cdef _tell_idlers(self)
    cpdef forbids(self)
    cpdef bint await_idle(self, double timeout, LaneCore lane=*, Py_ssize_t remaining=*) except -1
    cdef _trim(self, list trash)
    cdef sweep(self, FutureCore future)
    @cython.locals(line=object, dead=Py_ssize_t, place=Py_ssize_t, ahead=Py_ssize_t)
    cdef _compact(self, LaneCore lane)
    @cython.locals(future=FutureCore)
    cdef FutureCore _first_marked(self, double before)
    cpdef bring_home(self, FutureCore future, object value, object error, bint cancels=*)
    @cython.locals(found=FutureCore)
    cpdef tuple take_marked(self, double before)
    cpdef bint overdue(self, double before) except -1
    cpdef take_back(self, FutureCore future, object fn, object args, object kwargs)


cdef class Probe:
    cdef readonly object fn
    cdef object record
    cdef double made

    cdef _tell(self, double begun, double ended)


cdef class Worker:
    cdef readonly Pool pool
    cdef object bell
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
    cdef Py_ssize_t waits


cdef class ExecutorCore:
    cdef public Pool _pool
    cdef int _way

    @cython.locals(future=FutureCore)
    cpdef hand_in(self, LaneCore lane, bint first, object fn, tuple args, object kwargs)
    @cython.locals(future=FutureCore)
    cpdef take_in(self, LaneCore lane, bint first, object fn, tuple args, object kwargs)
    cdef FutureCore _prepare(self, FutureCore future, object fn, tuple args, object kwargs)
    @cython.locals(call=LoopCall)
    cpdef LoopCall offload(self, Mailbox mailbox, object ticket, object context, object fn, tuple args, object kwargs, LaneCore lane=*)
    cdef bint _takes_calls(self) except -1
    cpdef run_in(self, LaneCore lane, object fn, tuple args, object kwargs)
    cpdef run_on(self, object loop, object ticket, object context, object fn, tuple args, object kwargs, LaneCore lane=*)
