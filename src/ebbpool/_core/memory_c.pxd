# What compiled code says of the order of its memory accesses; without a GIL only, for the GIL orders them.
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
