/* Native twins of pure functions of this package. Each does what the function of its name in Python does, input by
   input; the Python ones are the reference and run where this was not built. Nothing here decides: bytes and
   counters only. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* --- WebSocket messages (RFC 6455 section 5.2) --- */

#define BINARY_AND_WHOLE 0x82
#define MASKED 0x80
#define MASK_BYTES 4
#define LENGTH_OF_2_BYTES 126
#define LENGTH_OF_8_BYTES 127

/* XOR of size bytes with a mask of four that begins at its first byte. The buffers may be one. */
static void
mask_bytes(unsigned char *to, const unsigned char *from, Py_ssize_t size, const unsigned char *mask)
{
    uint32_t four;
    uint64_t eight, piece;
    Py_ssize_t at = 0;

    memcpy(&four, mask, sizeof(four));
    eight = ((uint64_t)four << 32) | four;
    for (; at + 8 <= size; at += 8) {
        memcpy(&piece, from + at, sizeof(piece));
        piece ^= eight;
        memcpy(to + at, &piece, sizeof(piece));
    }
    for (; at < size; at++) {
        to[at] = from[at] ^ mask[at & 3];
    }
}

PyDoc_STRVAR(cut_messages_doc,
"cut_messages(data, start, masked, most_bytes)\n--\n\n"
"See shared.speedups.websocket_frames.cut_messages.");

static PyObject *
cut_messages(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer view;
    Py_ssize_t start, most_bytes;
    int masked;
    PyObject *messages = NULL, *result = NULL;

    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "cut_messages takes 4 arguments");
        return NULL;
    }
    start = PyLong_AsSsize_t(args[1]);
    if (start == -1 && PyErr_Occurred()) {
        return NULL;
    }
    masked = PyObject_IsTrue(args[2]);
    if (masked < 0) {
        return NULL;
    }
    most_bytes = PyLong_AsSsize_t(args[3]);
    if (most_bytes == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    if (start < 0 || start > view.len) {
        PyErr_SetString(PyExc_ValueError, "start lies outside of data");
        goto done;
    }
    messages = PyList_New(0);
    if (messages == NULL) {
        goto done;
    }
    for (;;) {
        const unsigned char *bytes = (const unsigned char *)view.buf + start;
        Py_ssize_t left = view.len - start, head = 2;
        uint64_t size;
        PyObject *message;
        int failed;

        if (left < 2 || bytes[0] != BINARY_AND_WHOLE || ((bytes[1] & MASKED) != 0) != masked) {
            break;
        }
        size = bytes[1] & 0x7f;
        if (size == LENGTH_OF_2_BYTES) {
            head = 4;
            if (left < head) {
                break;
            }
            size = ((uint64_t)bytes[2] << 8) | bytes[3];
        } else if (size == LENGTH_OF_8_BYTES) {
            int at;
            head = 10;
            if (left < head) {
                break;
            }
            for (size = 0, at = 2; at < 10; at++) {
                size = (size << 8) | bytes[at];
            }
        }
        if (masked) {
            head += MASK_BYTES;
        }
        if (size > (uint64_t)most_bytes || left < head || (uint64_t)(left - head) < size) {
            break;
        }
        message = PyBytes_FromStringAndSize(masked ? NULL : (const char *)bytes + head, (Py_ssize_t)size);
        if (message == NULL) {
            goto done;
        }
        if (masked) {
            mask_bytes((unsigned char *)PyBytes_AS_STRING(message), bytes + head, (Py_ssize_t)size,
                       bytes + head - MASK_BYTES);
        }
        failed = PyList_Append(messages, message);
        Py_DECREF(message);
        if (failed) {
            goto done;
        }
        start += head + (Py_ssize_t)size;
    }
    result = Py_BuildValue("(On)", messages, start);
done:
    Py_XDECREF(messages);
    PyBuffer_Release(&view);
    return result;
}

PyDoc_STRVAR(frame_messages_doc,
"frame_messages(messages, masks)\n--\n\n"
"See shared.speedups.websocket_frames.frame_messages.");

static PyObject *
frame_messages(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    PyObject *messages, *result;
    const unsigned char *masks;
    Py_ssize_t at, number, masks_bytes, size = 0;
    unsigned char *to;

    if (count != 2 || !PyList_Check(args[0]) || !PyBytes_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "frame_messages takes a list of bytes and bytes");
        return NULL;
    }
    messages = args[0];
    number = PyList_GET_SIZE(messages);
    masks = (const unsigned char *)PyBytes_AS_STRING(args[1]);
    masks_bytes = PyBytes_GET_SIZE(args[1]);
    if (masks_bytes != 0 && masks_bytes != number * MASK_BYTES) {
        PyErr_SetString(PyExc_ValueError, "there are four bytes of mask for each message, or none");
        return NULL;
    }
    for (at = 0; at < number; at++) {
        PyObject *message = PyList_GET_ITEM(messages, at);
        Py_ssize_t length;
        if (!PyBytes_Check(message)) {
            PyErr_SetString(PyExc_TypeError, "frame_messages takes a list of bytes and bytes");
            return NULL;
        }
        length = PyBytes_GET_SIZE(message);
        size += length + (length < 126 ? 2 : length < 65536 ? 4 : 10) + (masks_bytes ? MASK_BYTES : 0);
    }
    result = PyBytes_FromStringAndSize(NULL, size);
    if (result == NULL) {
        return NULL;
    }
    to = (unsigned char *)PyBytes_AS_STRING(result);
    for (at = 0; at < number; at++) {
        PyObject *message = PyList_GET_ITEM(messages, at);
        uint64_t length = (uint64_t)PyBytes_GET_SIZE(message);
        unsigned char flag = masks_bytes ? MASKED : 0;
        *to++ = BINARY_AND_WHOLE;
        if (length < 126) {
            *to++ = flag | (unsigned char)length;
        } else if (length < 65536) {
            *to++ = flag | LENGTH_OF_2_BYTES;
            *to++ = (unsigned char)(length >> 8);
            *to++ = (unsigned char)length;
        } else {
            int shift;
            *to++ = flag | LENGTH_OF_8_BYTES;
            for (shift = 56; shift >= 0; shift -= 8) {
                *to++ = (unsigned char)(length >> shift);
            }
        }
        if (masks_bytes) {
            const unsigned char *mask = masks + at * MASK_BYTES;
            memcpy(to, mask, MASK_BYTES);
            to += MASK_BYTES;
            mask_bytes(to, (const unsigned char *)PyBytes_AS_STRING(message), (Py_ssize_t)length, mask);
        } else {
            memcpy(to, PyBytes_AS_STRING(message), (size_t)length);
        }
        to += length;
    }
    return result;
}

/* --- The short way of a response's body: see body_path.py --- */

typedef struct {
    PyObject_HEAD
    PyObject *write, *flow, *waiting, *fresh, *last, *on_unsaid;
    char open;
    long long sent_bytes, pieces, taken_bytes, unsaid_bytes;
} BodyPath;

static PyTypeObject BodyPathType;

static PyObject *name_write_paused, *name_peer, *name_local, *name_credit, *name_path, *name_received, *name_granted;

static int
path_traverse(BodyPath *self, visitproc visit, void *arg)
{
    Py_VISIT(self->write);
    Py_VISIT(self->flow);
    Py_VISIT(self->waiting);
    Py_VISIT(self->fresh);
    Py_VISIT(self->last);
    Py_VISIT(self->on_unsaid);
    return 0;
}

static int
path_clear(BodyPath *self)
{
    Py_CLEAR(self->write);
    Py_CLEAR(self->flow);
    Py_CLEAR(self->waiting);
    Py_CLEAR(self->fresh);
    Py_CLEAR(self->last);
    Py_CLEAR(self->on_unsaid);
    return 0;
}

static void
path_dealloc(BodyPath *self)
{
    PyObject_GC_UnTrack(self);
    path_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
path_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"write", "flow", NULL};
    PyObject *write, *flow;
    BodyPath *self;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO", names, &write, &flow)) {
        return NULL;
    }
    self = (BodyPath *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->write = Py_NewRef(write);
    self->flow = Py_NewRef(flow);
    self->waiting = PyList_New(0);
    self->fresh = PyList_New(0);
    self->last = PyBytes_FromStringAndSize(NULL, 0);
    self->on_unsaid = Py_NewRef(Py_None);
    if (self->waiting == NULL || self->fresh == NULL || self->last == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int
ends_events(PyObject *data)
{
    const char *bytes = PyBytes_AS_STRING(data);
    Py_ssize_t size = PyBytes_GET_SIZE(data);

    return (size >= 2 && memcmp(bytes + size - 2, "\n\n", 2) == 0) ||
           (size >= 4 && memcmp(bytes + size - 4, "\r\n\r\n", 4) == 0);
}

/* 1: taken, 0: not, -1: an error. */
static int
path_offer(BodyPath *self, PyObject *data)
{
    PyObject *paused;
    int is_paused;
    Py_ssize_t size = PyBytes_GET_SIZE(data);

    if (!self->open) {
        return 0;
    }
    paused = PyObject_GetAttr(self->flow, name_write_paused);
    if (paused == NULL) {
        return -1;
    }
    is_paused = PyObject_IsTrue(paused);
    Py_DECREF(paused);
    if (is_paused || !ends_events(data)) {
        return is_paused < 0 ? -1 : 0;
    }
    if (PyList_Append(self->waiting, data) < 0 || PyList_Append(self->fresh, data) < 0) {
        return -1;
    }
    self->pieces += 1;
    self->sent_bytes += size;
    self->taken_bytes += size;
    self->unsaid_bytes += size;
    return 1;
}

static int
path_write(BodyPath *self)
{
    Py_ssize_t at, count = PyList_GET_SIZE(self->waiting), size = 0;
    PyObject *data, *framed, *result;
    char head[24], *to;
    int head_bytes;

    if (count == 0) {
        return 0;
    }
    for (at = 0; at < count; at++) {
        PyObject *piece = PyList_GET_ITEM(self->waiting, at);
        if (!PyBytes_Check(piece)) {
            PyErr_SetString(PyExc_TypeError, "a piece of a body is not bytes");
            return -1;
        }
        size += PyBytes_GET_SIZE(piece);
    }
    head_bytes = PyOS_snprintf(head, sizeof(head), "%zx\r\n", (size_t)size);
    framed = PyBytes_FromStringAndSize(NULL, head_bytes + size + 2);
    if (framed == NULL) {
        return -1;
    }
    to = PyBytes_AS_STRING(framed);
    memcpy(to, head, (size_t)head_bytes);
    to += head_bytes;
    for (at = 0; at < count; at++) {
        PyObject *piece = PyList_GET_ITEM(self->waiting, at);
        memcpy(to, PyBytes_AS_STRING(piece), (size_t)PyBytes_GET_SIZE(piece));
        to += PyBytes_GET_SIZE(piece);
    }
    memcpy(to, "\r\n", 2);
    if (count == 1) {
        data = Py_NewRef(PyList_GET_ITEM(self->waiting, 0));
    } else {
        data = PyBytes_FromStringAndSize(to - size, size);
    }
    if (data == NULL || PyList_SetSlice(self->waiting, 0, count, NULL) < 0) {
        Py_XDECREF(data);
        Py_DECREF(framed);
        return -1;
    }
    Py_XSETREF(self->last, data);
    result = PyObject_CallOneArg(self->write, framed);
    Py_DECREF(framed);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static PyObject *
path_take(BodyPath *self, PyObject *data)
{
    int taken;

    if (!PyBytes_Check(data)) {
        PyErr_SetString(PyExc_TypeError, "a piece of a body is not bytes");
        return NULL;
    }
    taken = path_offer(self, data);
    return taken < 0 ? NULL : PyBool_FromLong(taken);
}

static PyObject *
path_flush(BodyPath *self, PyObject *none)
{
    if (path_write(self) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef path_methods[] = {
    {"take", (PyCFunction)path_take, METH_O, "See shared.speedups.body_path.BodyPath.take."},
    {"flush", (PyCFunction)path_flush, METH_NOARGS, "See shared.speedups.body_path.BodyPath.flush."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef path_members[] = {
    {"write", T_OBJECT, offsetof(BodyPath, write), READONLY, NULL},
    {"flow", T_OBJECT, offsetof(BodyPath, flow), READONLY, NULL},
    {"waiting", T_OBJECT, offsetof(BodyPath, waiting), READONLY, NULL},
    {"fresh", T_OBJECT, offsetof(BodyPath, fresh), READONLY, NULL},
    {"last", T_OBJECT, offsetof(BodyPath, last), 0, NULL},
    {"on_unsaid", T_OBJECT, offsetof(BodyPath, on_unsaid), 0, NULL},
    {"open", T_BOOL, offsetof(BodyPath, open), 0, NULL},
    {"sent_bytes", T_LONGLONG, offsetof(BodyPath, sent_bytes), 0, NULL},
    {"pieces", T_LONGLONG, offsetof(BodyPath, pieces), 0, NULL},
    {"taken_bytes", T_LONGLONG, offsetof(BodyPath, taken_bytes), 0, NULL},
    {"unsaid_bytes", T_LONGLONG, offsetof(BodyPath, unsaid_bytes), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject BodyPathType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shared.speedups._native.BodyPath",
    .tp_doc = "See shared.speedups.body_path.BodyPath.",
    .tp_basicsize = sizeof(BodyPath),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = path_new,
    .tp_traverse = (traverseproc)path_traverse,
    .tp_clear = (inquiry)path_clear,
    .tp_dealloc = (destructor)path_dealloc,
    .tp_methods = path_methods,
    .tp_members = path_members,
};

/* 0: done, -1: an error, which OverflowError is as well. */
static int
number_of(PyObject *object, PyObject *name, long long *number)
{
    PyObject *found = PyObject_GetAttr(object, name);

    if (found == NULL) {
        return -1;
    }
    *number = PyLong_AsLongLong(found);
    Py_DECREF(found);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

static int
set_number(PyObject *object, PyObject *name, long long number)
{
    PyObject *value = PyLong_FromLongLong(number);
    int failed;

    if (value == NULL) {
        return -1;
    }
    failed = PyObject_SetAttr(object, name, value);
    Py_DECREF(value);
    return failed;
}

/* 1: ``object`` has ``value`` under this name, 0: something else, -1: an error. */
static int
has(PyObject *object, PyObject *name, PyObject *value)
{
    PyObject *found = PyObject_GetAttr(object, name);

    if (found == NULL) {
        return -1;
    }
    Py_DECREF(found); /* the object holds it */
    return found == value;
}

#define HEADER_BYTES 9

PyDoc_STRVAR(receive_bodies_doc,
"receive_bodies(message, start, streams, session, events, event_type, states, frame_type, most_bytes, step_bytes)\n"
"--\n\nSee shared.speedups.body_path.receive_bodies.");

static PyObject *
receive_bodies(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    PyObject *message, *streams, *session, *events, *event_type, *body, *unwanted, *reset;
    PyObject *touched = NULL, *due = NULL, *result = NULL, *key = NULL;
    const unsigned char *bytes;
    Py_ssize_t start, size, at;
    long long frame_type, most_bytes, step_bytes, session_received, session_granted, in_session;

    if (count != 10 || !PyBytes_Check(args[0]) || !PyDict_Check(args[2]) || !PyList_Check(args[4]) ||
        !PyType_Check(args[5]) || !PyTuple_Check(args[6]) || PyTuple_GET_SIZE(args[6]) != 3) {
        PyErr_SetString(PyExc_TypeError, "receive_bodies was called with something else than it takes");
        return NULL;
    }
    message = args[0], streams = args[2], session = args[3], events = args[4], event_type = args[5];
    body = PyTuple_GET_ITEM(args[6], 0);
    unwanted = PyTuple_GET_ITEM(args[6], 1);
    reset = PyTuple_GET_ITEM(args[6], 2);
    start = PyLong_AsSsize_t(args[1]);
    frame_type = PyLong_AsLongLong(args[7]);
    most_bytes = PyLong_AsLongLong(args[8]);
    step_bytes = PyLong_AsLongLong(args[9]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    bytes = (const unsigned char *)PyBytes_AS_STRING(message);
    size = PyBytes_GET_SIZE(message);
    if (start < 0) {
        PyErr_SetString(PyExc_ValueError, "start lies before the message");
        return NULL;
    }
    if (number_of(session, name_received, &session_received) < 0 ||
        number_of(session, name_granted, &session_granted) < 0) {
        return NULL;
    }
    in_session = session_received;
    touched = PyList_New(0);
    if (touched == NULL) {
        return NULL;
    }
    while (start + HEADER_BYTES < size) {
        const unsigned char *head = bytes + start;
        uint32_t stream_id = ((uint32_t)head[1] << 24) | ((uint32_t)head[2] << 16) | ((uint32_t)head[3] << 8) | head[4];
        uint32_t length = ((uint32_t)head[5] << 24) | ((uint32_t)head[6] << 16) | ((uint32_t)head[7] << 8) | head[8];
        Py_ssize_t begin = start + HEADER_BYTES;
        PyObject *stream, *credit, *path, *data;
        long long received, granted;
        int state, taken = 0;

        if (head[0] != frame_type || length == 0 || length > most_bytes || (Py_ssize_t)length > size - begin) {
            break;
        }
        key = PyLong_FromUnsignedLong(stream_id);
        if (key == NULL) {
            goto done;
        }
        stream = PyDict_GetItemWithError(streams, key);
        if (stream == NULL) {
            if (PyErr_Occurred()) {
                goto done;
            }
            break;
        }
        state = has(stream, name_peer, body);
        if (state < 0) {
            goto done;
        }
        if (!state) {
            break;
        }
        state = has(stream, name_local, reset);
        if (state == 0) {
            state = has(stream, name_local, unwanted);
        }
        if (state < 0) {
            goto done;
        }
        if (state) {
            break;
        }
        credit = PyObject_GetAttr(stream, name_credit);
        if (credit == NULL) {
            goto done;
        }
        if (number_of(credit, name_received, &received) < 0 || number_of(credit, name_granted, &granted) < 0) {
            Py_DECREF(credit);
            goto done;
        }
        if (received + length > granted || in_session + length > session_granted) {
            Py_DECREF(credit);
            break;
        }
        state = set_number(credit, name_received, received + length);
        Py_DECREF(credit);
        if (state < 0) {
            goto done;
        }
        in_session += length;
        data = PyBytes_FromStringAndSize((const char *)bytes + begin, (Py_ssize_t)length);
        path = data == NULL ? NULL : PyObject_GetAttr(stream, name_path);
        if (path == NULL) {
            Py_XDECREF(data);
            goto done;
        }
        if (Py_IS_TYPE(path, &BodyPathType)) {
            BodyPath *native = (BodyPath *)path;
            taken = path_offer(native, data);
            if (taken > 0 && PyList_GET_SIZE(native->waiting) == 1 && PyList_Append(touched, path) < 0) {
                taken = -1;
            } else if (taken == 0) {
                native->open = 0; /* or the next piece would overtake this one */
            }
        } else if (path != Py_None) {
            PyErr_SetString(PyExc_TypeError, "a stream's path is of another kind");
            taken = -1;
        }
        Py_DECREF(path);
        if (taken == 0) {
            PyObject *pair = PyTuple_Pack(2, key, data);
            PyObject *args_of_new = pair == NULL ? NULL : PyTuple_Pack(1, pair);
            PyObject *event = args_of_new == NULL
                                  ? NULL
                                  : PyTuple_Type.tp_new((PyTypeObject *)event_type, args_of_new, NULL);
            Py_XDECREF(pair);
            Py_XDECREF(args_of_new);
            if (event == NULL || PyList_Append(events, event) < 0) {
                taken = -1;
            }
            Py_XDECREF(event);
        }
        Py_DECREF(data);
        Py_CLEAR(key);
        if (taken < 0) {
            goto done;
        }
        start = begin + (Py_ssize_t)length;
    }
    due = PyList_New(0);
    if (due == NULL) {
        goto done;
    }
    if (in_session != session_received) {
        session_received = in_session; /* before anything is written, which may call back */
        if (set_number(session, name_received, in_session) < 0) {
            goto done;
        }
    }
    for (at = 0; at < PyList_GET_SIZE(touched); at++) {
        BodyPath *path = (BodyPath *)PyList_GET_ITEM(touched, at);
        if (path_write(path) < 0 || (path->unsaid_bytes >= step_bytes && PyList_Append(due, (PyObject *)path) < 0)) {
            goto done;
        }
    }
    result = Py_BuildValue("(nO)", start, due);
done:
    if (result == NULL && in_session != session_received) { /* what was counted for a stream counts here too */
        PyObject *kind, *value, *traceback;
        PyErr_Fetch(&kind, &value, &traceback);
        if (set_number(session, name_received, in_session) < 0) {
            PyErr_Clear();
        }
        PyErr_Restore(kind, value, traceback);
    }
    Py_XDECREF(key);
    Py_XDECREF(touched);
    Py_XDECREF(due);
    return result;
}

static PyMethodDef methods[] = {
    {"cut_messages", (PyCFunction)(void (*)(void))cut_messages, METH_FASTCALL, cut_messages_doc},
    {"frame_messages", (PyCFunction)(void (*)(void))frame_messages, METH_FASTCALL, frame_messages_doc},
    {"receive_bodies", (PyCFunction)(void (*)(void))receive_bodies, METH_FASTCALL, receive_bodies_doc},
    {NULL, NULL, 0, NULL},
};

static int
prepare(PyObject *module)
{
    struct {
        PyObject **name;
        const char *text;
    } names[] = {
        {&name_write_paused, "write_paused"}, {&name_peer, "peer"},         {&name_local, "local"},
        {&name_credit, "credit"},             {&name_path, "path"},         {&name_received, "received"},
        {&name_granted, "granted"},
    };
    size_t at;

    for (at = 0; at < sizeof(names) / sizeof(names[0]); at++) {
        *names[at].name = PyUnicode_InternFromString(names[at].text);
        if (*names[at].name == NULL) {
            return -1;
        }
    }
    return PyModule_AddType(module, &BodyPathType);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, prepare},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "shared.speedups._native",
    "Native twins of the functions of shared.speedups.",
    0,
    methods,
    slots,
    NULL,
    NULL,
    NULL,
};

PyMODINIT_FUNC
PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
