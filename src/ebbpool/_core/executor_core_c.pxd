# C types for executor_core.py, which Cython compiles as ebbpool._core.executor_core_c.
cimport cython
from ebbpool._core.future_c cimport FutureCore, _bare, _EMPTY, _Future, _NOBODY, breathe
from ebbpool._core.known_c cimport Known
from ebbpool._core.loop_calls_c cimport LoopCall, Mailbox
from ebbpool._core.native_c cimport COMING, PENDING, identity, shared_bint, shared_int
from ebbpool._core.pool_c cimport HORIZON, Pool, Wrapping
from ebbpool._core.staff_c cimport Staff
from ebbpool._core.task_c cimport LaneCore, Line
from ebbpool._core.worker_c cimport Probe

cdef extern from *:
    """
    #define ebbpool_has_code(function, code) (PyFunction_GetCode(function) == (code))
    """
    bint has_code "ebbpool_has_code"(object function, object code) noexcept
    FutureCore blank "ebbpool_blank"(object base, object type, tuple empty)

cdef str _mailbox_name
cdef shared_bint _connected
cdef object _get_loop, _make_mailbox, _LoopFuture
cdef object _Standard, _own, _own_code

cpdef bint instrumented() except -1
cdef object _measured(Pool pool, object fn)


cdef class ExecutorCore:
    cdef public Pool _pool
    cdef shared_int _way

    @cython.locals(future=FutureCore)
    cpdef hand_in(self, LaneCore lane, bint first, object fn, tuple args, object kwargs, object scope=*, bint shown=*)
    @cython.locals(pool=Pool, wrapping=Wrapping)
    cdef _prepare(self, FutureCore future, object fn, tuple args, object kwargs)
    @cython.locals(call=LoopCall, pool=Pool, known=Known, may_lead=bint, first=bint)
    cpdef LoopCall offload(self, Mailbox mailbox, object ticket, object context, object fn, tuple args, object kwargs, LaneCore lane=*, object scope=*)
    cdef bint _takes_calls(self) except -1
    cpdef run_in(self, LaneCore lane, object fn, tuple args, object kwargs, object scope=*)
    cpdef run_on(self, object loop, object ticket, object context, object fn, tuple args, object kwargs, LaneCore lane=*, object scope=*)
