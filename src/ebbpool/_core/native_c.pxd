# What compiled code has from C; uncompiled.py has the same for plain Python.
cdef enum:
    PENDING = 0
    RUNNING = 1
    CANCELLED = 2
    NOTIFIED = 3
    FINISHED = 4

cdef enum:
    STARTING = 0
    COMING = 1
    PARKED = 2
    WORKING = 3
    AHEAD = 4
    SHORT = 5
    LENT = 6
    LONG = 7
    LEFT = 8
    BLOCKED = 9
    GONE = 10
    STATES = 11

cdef enum:
    START = 1
    LOOK = 2

cdef extern from *:
    """
    /* What one thread writes while others read it without the mutex: who sees it sees what was written before. */
    #if !defined(Py_GIL_DISABLED)
    #define ebbpool_shared(type) type
    #elif defined(_MSC_VER)
    #define ebbpool_shared(type) type volatile
    #else
    #define ebbpool_shared(type) _Atomic(type)
    #endif
    typedef ebbpool_shared(int) ebbpool_shared_int;
    typedef ebbpool_shared(Py_ssize_t) ebbpool_shared_size;
    typedef ebbpool_shared(long long) ebbpool_shared_count;
    typedef ebbpool_shared(double) ebbpool_shared_double;

    /* The order of memory accesses; without a GIL only, for the GIL orders them. */
    #if !defined(Py_GIL_DISABLED)
    #define ebbpool_fence() ((void)0)
    #elif defined(_MSC_VER)
    #include <windows.h>
    #define ebbpool_fence() MemoryBarrier()
    #else
    #define ebbpool_fence() __atomic_thread_fence(__ATOMIC_SEQ_CST)
    #endif

    /* A taken mutex of 3.13 and 3.14 has a thread yield forty times, without a look at it, before it parks; latch.py says
       what that costs. So the thread looks again for about a microsecond, and then lets the interpreter believe that
       others are parked already, which it joins at once. */
    #if defined(Py_GIL_DISABLED) && PY_VERSION_HEX < 0x03100000
    #if defined(_MSC_VER)
    #define ebbpool_pause() YieldProcessor()
    #elif defined(__x86_64__) || defined(__i386__)
    #define ebbpool_pause() __builtin_ia32_pause()
    #elif defined(__aarch64__)
    #define ebbpool_pause() __asm__ __volatile__("yield")
    #else
    #define ebbpool_pause() ((void)0)
    #endif
    static void ebbpool_lock_taken(PyMutex *mutex) {
        uint8_t bits = 1;
        for (int looks = 0; looks < 100; looks++) {
            ebbpool_pause();
            bits = _Py_atomic_load_uint8_relaxed(&mutex->_bits);
            if (!(bits & 1) && _Py_atomic_compare_exchange_uint8(&mutex->_bits, &bits, bits | 1)) return;
        }
        while (bits == 1 && !_Py_atomic_compare_exchange_uint8(&mutex->_bits, &bits, 3)) {}
        (PyMutex_Lock)(mutex);
    }
    static CYTHON_INLINE void ebbpool_lock(PyMutex *mutex) {
        uint8_t bits = 0;
        if (!_Py_atomic_compare_exchange_uint8(&mutex->_bits, &bits, 1)) ebbpool_lock_taken(mutex);
    }
    #undef PyMutex_Lock
    #define PyMutex_Lock ebbpool_lock
    #endif

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
    #define ebbpool_awaited() ((_Py_atomic_load_uintptr_relaxed(&PyThreadState_GetUnchecked()->eval_breaker) & 0xFF) != 0)
    #else
    static unsigned int ebbpool_turns = 0;
    #define ebbpool_awaited() ((++ebbpool_turns & 15) == 0)
    #endif

    /* base.__new__(type), without a search for the method and a tuple of arguments. */
    #define ebbpool_blank(base, type, empty) \
        ((void *)((PyTypeObject *)(base))->tp_new((PyTypeObject *)(type), empty, NULL))

    #define ebbpool_identity(thing) ((Py_ssize_t)(thing))
    #define ebbpool_code_identity(fn) ((Py_ssize_t)PyFunction_GET_CODE(fn))

    /* fn(*args), as the interpreter itself calls. */
    static CYTHON_INLINE PyObject *ebbpool_called(PyObject *fn, PyObject *args) {
        if (!PyTuple_CheckExact(args)) {
            PyErr_SetString(PyExc_TypeError, "the arguments of a call must be a tuple");
            return NULL;
        }
        return PyObject_Vectorcall(fn, ((PyTupleObject *)args)->ob_item, (size_t)PyTuple_GET_SIZE(args), NULL);
    }
    """
    ctypedef bint shared_bint "ebbpool_shared_int"
    ctypedef int shared_int "ebbpool_shared_int"
    ctypedef Py_ssize_t shared_size "ebbpool_shared_size"
    ctypedef long long shared_count "ebbpool_shared_count"
    ctypedef double shared_double "ebbpool_shared_double"
    void fence "ebbpool_fence"() noexcept nogil
    # id(thing), without an int made of it.
    Py_ssize_t identity "ebbpool_identity"(object thing) noexcept
    Py_ssize_t code_identity "ebbpool_code_identity"(object fn) noexcept
    # Under a mutex, around code that makes objects known to the collector: it runs any code, which may need the mutex.
    # No other thread runs in between, for it has no GIL.
    bint hold_collector "ebbpool_hold_collector"() noexcept
    void let_collector "ebbpool_let_collector"(bint collects) noexcept
    # Whether this thread should pass the eval breaker; one time in 16 where the interpreter does not tell.
    bint awaited "ebbpool_awaited"() noexcept nogil
    object called "ebbpool_called"(object fn, object args)
    object called_with "PyObject_CallOneArg"(object fn, object argument)

cdef extern from "Python.h":
    int enter "PyContext_Enter"(object context) except -1
    int leave "PyContext_Exit"(object context) except -1
