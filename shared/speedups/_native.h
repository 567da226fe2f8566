/* What the sources of the native functions give one another. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* _native_out.c */
extern PyObject *take_turns(PyObject *module, PyObject *const *args, Py_ssize_t count);
extern int prepare_out(PyObject *module);

/* _native_read.c */
extern PyObject *read_ready(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* _native_head.c */
extern int prepare_head(PyObject *module);
