/* The native twin of header_collector.py. Nothing here decides: bytes and counters only. */

#include "_native.h"
#include <structmember.h>
#include <stddef.h>

typedef struct {
    PyObject_HEAD
    PyObject *otherwise, *fields;
    vectorcallfunc vectorcall;
    Py_ssize_t most_fields, most_bytes;
    char open;
} HeaderCollector;

static int
collector_traverse(HeaderCollector *self, visitproc visit, void *arg)
{
    Py_VISIT(self->otherwise);
    Py_VISIT(self->fields);
    return 0;
}

static int
collector_clear(HeaderCollector *self)
{
    Py_CLEAR(self->otherwise);
    Py_CLEAR(self->fields);
    return 0;
}

static void
collector_dealloc(HeaderCollector *self)
{
    PyObject_GC_UnTrack(self);
    collector_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* The name in lower case, as bytes.lower has it: a new reference; NULL: an error. */
static PyObject *
lowered(PyObject *name)
{
    const char *bytes = PyBytes_AS_STRING(name);
    Py_ssize_t at, size = PyBytes_GET_SIZE(name);
    PyObject *copy;
    char *out;

    for (at = 0; at < size; at++) {
        if (bytes[at] >= 'A' && bytes[at] <= 'Z') {
            break;
        }
    }
    if (at == size) {
        return Py_NewRef(name);
    }
    copy = PyBytes_FromStringAndSize(NULL, size); /* a new one: those of one byte are shared otherwise */
    if (copy == NULL) {
        return NULL;
    }
    out = PyBytes_AS_STRING(copy);
    for (at = 0; at < size; at++) {
        out[at] = bytes[at] >= 'A' && bytes[at] <= 'Z' ? bytes[at] + ('a' - 'A') : bytes[at];
    }
    return copy;
}

static PyObject *
collector_call(PyObject *callable, PyObject *const *args, size_t count, PyObject *names)
{
    HeaderCollector *self = (HeaderCollector *)callable;
    PyObject *name, *field, *otherwise, *result;
    int failed;

    if (PyVectorcall_NARGS(count) != 2 || names != NULL || !PyBytes_CheckExact(args[0]) ||
        !PyBytes_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "a collector of header fields takes two bytes objects");
        return NULL;
    }
    if (self->open && self->fields != NULL && PyList_GET_SIZE(self->fields) < self->most_fields &&
        PyBytes_GET_SIZE(args[0]) + PyBytes_GET_SIZE(args[1]) <= self->most_bytes) {
        name = lowered(args[0]);
        if (name == NULL) {
            return NULL;
        }
        field = PyTuple_Pack(2, name, args[1]);
        Py_DECREF(name);
        if (field == NULL) {
            return NULL;
        }
        failed = PyList_Append(self->fields, field);
        Py_DECREF(field);
        if (failed < 0) {
            return NULL;
        }
        Py_RETURN_NONE;
    }
    if (self->otherwise == NULL) { /* closed */
        Py_RETURN_NONE;
    }
    otherwise = Py_NewRef(self->otherwise);
    result = PyObject_CallFunctionObjArgs(otherwise, args[0], args[1], NULL);
    Py_DECREF(otherwise);
    if (result == NULL) {
        return NULL;
    }
    Py_DECREF(result);
    Py_RETURN_NONE;
}

static PyObject *
collector_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"otherwise", "most_fields", "most_bytes", NULL};
    PyObject *otherwise;
    Py_ssize_t most_fields, most_bytes;
    HeaderCollector *self;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Onn", names, &otherwise, &most_fields, &most_bytes)) {
        return NULL;
    }
    self = (HeaderCollector *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->fields = PyList_New(0);
    if (self->fields == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    self->otherwise = Py_NewRef(otherwise);
    self->most_fields = most_fields;
    self->most_bytes = most_bytes;
    self->open = 1;
    self->vectorcall = collector_call;
    return (PyObject *)self;
}

static PyObject *
collector_close(HeaderCollector *self, PyObject *none)
{
    Py_CLEAR(self->otherwise);
    Py_RETURN_NONE;
}

static PyObject *
collector_get_fields(HeaderCollector *self, void *closure)
{
    return self->fields == NULL ? PyList_New(0) : Py_NewRef(self->fields);
}

static int
collector_set_fields(HeaderCollector *self, PyObject *fields, void *closure)
{
    if (fields == NULL || !PyList_CheckExact(fields)) {
        PyErr_SetString(PyExc_TypeError, "fields are a list");
        return -1;
    }
    Py_XSETREF(self->fields, Py_NewRef(fields));
    return 0;
}

static PyMethodDef collector_methods[] = {
    {"close", (PyCFunction)collector_close, METH_NOARGS, "See shared.speedups.header_collector.HeaderCollector.close."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef collector_members[] = {
    {"open", T_BOOL, offsetof(HeaderCollector, open), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef collector_getset[] = {
    {"fields", (getter)collector_get_fields, (setter)collector_set_fields, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject HeaderCollectorType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shared.speedups._native.HeaderCollector",
    .tp_doc = "See shared.speedups.header_collector.HeaderCollector.",
    .tp_basicsize = sizeof(HeaderCollector),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = collector_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(HeaderCollector, vectorcall),
    .tp_traverse = (traverseproc)collector_traverse,
    .tp_clear = (inquiry)collector_clear,
    .tp_dealloc = (destructor)collector_dealloc,
    .tp_methods = collector_methods,
    .tp_members = collector_members,
    .tp_getset = collector_getset,
};

int
prepare_head(PyObject *module)
{
    return PyModule_AddType(module, &HeaderCollectorType);
}
