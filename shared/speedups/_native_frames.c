/* Native twin of session_frames.py. Nothing here decides: bytes and counters only. */

#include "_native.h"

#define HEADER_BYTES 9
#define RULE_BYTES 12
#define RULES_BYTES (256 * RULE_BYTES)
#define ON_EITHER 2

static uint32_t
big_endian(const unsigned char *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static uint32_t
little_endian(const unsigned char *bytes)
{
    return (uint32_t)bytes[3] << 24 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[1] << 8 | bytes[0];
}

/* A new reference to the tuple of a frame, of a class derived from tuple; NULL: an error. */
static PyObject *
make_frame(PyTypeObject *frame_class, const unsigned char *header, uint32_t length)
{
    PyObject *type = PyLong_FromLong(header[0]);
    PyObject *stream_id = PyLong_FromUnsignedLong(big_endian(header + 1));
    PyObject *payload = PyBytes_FromStringAndSize((const char *)header + HEADER_BYTES, length);
    PyObject *frame = NULL;

    if (type != NULL && stream_id != NULL && payload != NULL) {
        frame = frame_class->tp_alloc(frame_class, 3);
    }
    if (frame == NULL) {
        Py_XDECREF(type);
        Py_XDECREF(stream_id);
        Py_XDECREF(payload);
        return NULL;
    }
    PyTuple_SET_ITEM(frame, 0, type);
    PyTuple_SET_ITEM(frame, 1, stream_id);
    PyTuple_SET_ITEM(frame, 2, payload);
    return frame;
}

static PyObject *known_class; /* the latest of which a tuple may be made */

/* Whether a tuple may be made of this class, which is derived from it: of some only their own constructor can. */
static int
may_be_made(PyObject *frame_class)
{
    PyObject *made;

    if (frame_class == known_class) {
        return 0;
    }
    made = PyObject_CallMethod((PyObject *)&PyTuple_Type, "__new__", "O", frame_class);
    if (made == NULL) {
        return -1;
    }
    Py_DECREF(made);
    Py_XSETREF(known_class, Py_NewRef(frame_class));
    return 0;
}

PyObject *
cut_frames(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    const unsigned char *message, *rules;
    PyTypeObject *frame_class;
    PyObject *frames, *frame;
    Py_ssize_t start, size;
    long stop_type;

    if (count != 5 || !PyBytes_Check(args[0]) || !PyBytes_Check(args[2]) || !PyType_Check(args[3]) ||
        !PyType_IsSubtype((PyTypeObject *)args[3], &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "cut_frames takes bytes, a number, rules, a class of tuples and a number");
        return NULL;
    }
    if (may_be_made(args[3]) < 0) {
        return NULL;
    }
    start = PyLong_AsSsize_t(args[1]);
    if (start == -1 && PyErr_Occurred()) {
        return NULL;
    }
    stop_type = PyLong_AsLong(args[4]);
    if (stop_type == -1 && PyErr_Occurred()) {
        return NULL;
    }
    message = (const unsigned char *)PyBytes_AS_STRING(args[0]);
    size = PyBytes_GET_SIZE(args[0]);
    rules = (const unsigned char *)PyBytes_AS_STRING(args[2]);
    frame_class = (PyTypeObject *)args[3];
    if (start < 0 || start > size) {
        PyErr_SetString(PyExc_ValueError, "start lies outside of message");
        return NULL;
    }
    if (PyBytes_GET_SIZE(args[2]) != RULES_BYTES) {
        PyErr_SetString(PyExc_ValueError, "there is a rule for each type");
        return NULL;
    }
    frames = PyList_New(0);
    if (frames == NULL) {
        return NULL;
    }
    while (size - start >= HEADER_BYTES) {
        const unsigned char *header = message + start;
        const unsigned char *rule = rules + header[0] * RULE_BYTES;
        uint32_t length = big_endian(header + 5);
        int on_stream = big_endian(header + 1) != 0;
        if (!rule[0] || header[0] == stop_type || length < little_endian(rule + 4) ||
            length > little_endian(rule + 8) || (rule[1] != ON_EITHER && rule[1] != on_stream) ||
            (Py_ssize_t)length > size - start - HEADER_BYTES) {
            break;
        }
        frame = make_frame(frame_class, header, length);
        if (frame == NULL || PyList_Append(frames, frame) < 0) {
            Py_XDECREF(frame);
            Py_DECREF(frames);
            return NULL;
        }
        Py_DECREF(frame);
        start += HEADER_BYTES + (Py_ssize_t)length;
    }
    return Py_BuildValue("(Nn)", frames, start);
}
