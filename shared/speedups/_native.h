/* What the sources of the native functions give one another. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <limits.h>
#include <stdint.h>

/* To be counted up, here and in __init__.py, with every change of what Python calls, gives or reads: a library that
   was built from older sources is not used then. */
#define INTERFACE 3

/* 0: done, -1: an error, which OverflowError is as well. An ``__index__`` may be called. */
static inline int
read_number(PyObject *from, long long *to)
{
    *to = PyLong_AsLongLong(from);
    return *to == -1 && PyErr_Occurred() ? -1 : 0;
}

/* A count and so many more, or the last number there is on that side. */
static inline long long
add_up(long long count, long long more)
{
    if (more > 0 && count > LLONG_MAX - more) {
        return LLONG_MAX;
    }
    return more < 0 && count < LLONG_MIN - more ? LLONG_MIN : count + more;
}

/* Whether a count and so many more are more than the limit. */
static inline int
exceeds(long long count, long long more, long long limit)
{
    return (more > 0 && count > LLONG_MAX - more) || add_up(count, more) > limit;
}

/* _native_out.c */
extern PyObject *take_turns(PyObject *module, PyObject *const *args, Py_ssize_t count);
extern int prepare_out(PyObject *module);

/* _native_read.c */
extern PyObject *read_ready(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* _native_pages.c */
extern PyObject *use_huge_pages(PyObject *module, PyObject *ignored);
extern PyObject *collapse_pages(PyObject *module, PyObject *ignored);

/* _native_frames.c */
extern PyObject *cut_frames(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* _native_head.c */
extern int prepare_head(PyObject *module);
