/* Native twins of pure functions of this package. Each does what the function of its name in Python does, input by
   input; the Python ones are the reference and run where this was not built. Nothing here decides: bytes and
   counters only. */

#include "_native.h"
#include <structmember.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>
#ifndef _WIN32
#include <sys/socket.h>
#endif

/* --- WebSocket messages (RFC 6455 section 5.2) --- */

#define BINARY_AND_WHOLE 0x82
#define MASKED 0x80
#define MASK_BYTES 4
#define MOST_HEAD_BYTES 14
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
        if (most_bytes < 0 || size > (uint64_t)most_bytes || left < head || (uint64_t)(left - head) < size) {
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
        if (length > PY_SSIZE_T_MAX - MOST_HEAD_BYTES - size) {
            return PyErr_NoMemory();
        }
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

#define LAST_BYTES 4
#define STEP_BYTES (4 * 1024) /* as in body_path.py */
#define FRAMED_BYTES 4096 /* of a chunk that is framed without an object of its own */
#define FRAMING_BYTES 24  /* around a chunk, at the most */

typedef struct {
    PyObject_HEAD
    char open;
    char empty;      /* found so: nothing waits in the transport, until somebody gives it something */
    char unbuffered; /* found so when this message's first piece was taken: it may be sent at once */
    char last_bytes;
    char last[LAST_BYTES];
    int descriptor;
    PyObject *only; /* the one piece of this message, which is then in no list; NULL otherwise */
    PyObject *write, *flow, *waiting, *fresh, *on_unsaid, *buffered_bytes;
    long long sent_bytes, pieces, taken_bytes, unsaid_bytes, step_bytes, waiting_bytes;
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
    Py_VISIT(self->only);
    Py_VISIT(self->on_unsaid);
    Py_VISIT(self->buffered_bytes);
    return 0;
}

/* The lists stay until the end: they clear themselves, and a path of a cycle may be called after this. */
static int
path_clear(BodyPath *self)
{
    Py_CLEAR(self->write);
    Py_CLEAR(self->flow);
    Py_CLEAR(self->only);
    Py_CLEAR(self->on_unsaid);
    Py_CLEAR(self->buffered_bytes);
    return 0;
}

static void
path_dealloc(BodyPath *self)
{
    PyObject_GC_UnTrack(self);
    path_clear(self);
    Py_CLEAR(self->waiting);
    Py_CLEAR(self->fresh);
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
    self->on_unsaid = Py_NewRef(Py_None);
    self->buffered_bytes = Py_NewRef(Py_None);
    self->descriptor = -1;
    self->step_bytes = STEP_BYTES;
    if (self->waiting == NULL || self->fresh == NULL) {
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

/* What the path has under this name, held while it is used; NULL: an error. It may have been deleted or cleared. */
static PyObject *
path_hold(PyObject *part, const char *name)
{
    if (part == NULL) {
        PyErr_SetString(PyExc_AttributeError, name);
    }
    return Py_XNewRef(part);
}

/* 1: the connection has a descriptor, and nothing that was written before waits in the program; 0: not so, or it is
   not known; -1: an error. While the path is open nobody else writes to the connection, so it is asked once. */
static int
path_is_unbuffered(BodyPath *self)
{
    PyObject *buffered_bytes, *found;
    long long size;
    int failed;

    if (self->descriptor < 0) {
        return 0;
    }
    if (self->empty && self->open) {
        return 1;
    }
    buffered_bytes = path_hold(self->buffered_bytes, "buffered_bytes");
    if (buffered_bytes == NULL) {
        return -1;
    }
    found = PyObject_CallNoArgs(buffered_bytes);
    Py_DECREF(buffered_bytes);
    failed = found == NULL ? -1 : read_number(found, &size);
    Py_XDECREF(found);
    if (failed < 0) {
        return -1;
    }
    self->empty = size == 0;
    return self->empty;
}

/* 1: the connection has enough for now, 0: not so, -1: an error. */
static int
path_is_paused(BodyPath *self)
{
    PyObject *flow = path_hold(self->flow, "flow");
    PyObject *paused = flow == NULL ? NULL : PyObject_GetAttr(flow, name_write_paused);
    int is_paused;

    Py_XDECREF(flow);
    if (paused == NULL) {
        return -1;
    }
    is_paused = PyObject_IsTrue(paused);
    Py_DECREF(paused);
    return is_paused;
}

static int
path_count(BodyPath *self, PyObject *data)
{
    Py_ssize_t size = PyBytes_GET_SIZE(data);

    if (PyList_Append(self->fresh, data) < 0) {
        return -1;
    }
    self->pieces = add_up(self->pieces, 1);
    self->sent_bytes = add_up(self->sent_bytes, size);
    self->taken_bytes = add_up(self->taken_bytes, size);
    self->unsaid_bytes = add_up(self->unsaid_bytes, size);
    self->waiting_bytes = add_up(self->waiting_bytes, size);
    return 1;
}

/* From a call. 1: taken, 0: not, -1: an error. */
static int
path_offer(BodyPath *self, PyObject *data)
{
    int paused;

    if (!self->open) {
        return 0;
    }
    paused = path_is_paused(self);
    if (paused || !ends_events(data)) {
        return paused < 0 ? -1 : 0;
    }
    return PyList_Append(self->waiting, data) < 0 ? -1 : path_count(self, data);
}

/* From a message: the same, and 2 for the first piece, after which the path has to be written: at once when the
   message ends, or later. A connection with nothing buffered is not paused. */
static int
path_receive(BodyPath *self, PyObject *data, int at_once)
{
    int first = self->only == NULL && PyList_GET_SIZE(self->waiting) == 0;
    int paused, unbuffered;

    if (!self->open) {
        return 0;
    }
    if (first) {
        unbuffered = at_once || self->empty ? path_is_unbuffered(self) : 0; /* later it has to be asked later */
        if (unbuffered < 0) {
            return -1;
        }
        self->unbuffered = (char)unbuffered;
    }
    if (first ? !self->unbuffered : self->only == NULL || !self->unbuffered) {
        paused = path_is_paused(self);
        if (paused) {
            return paused < 0 ? -1 : 0;
        }
    }
    if (!ends_events(data) || !self->open) {
        return 0;
    }
    first = first && self->only == NULL && PyList_GET_SIZE(self->waiting) == 0; /* a call may have put one there */
    if (first && at_once) {
        self->only = Py_NewRef(data);
        return path_count(self, data) < 0 ? -1 : 2;
    }
    if (self->only != NULL) {
        if (PyList_Append(self->waiting, self->only) < 0) {
            return -1;
        }
        Py_CLEAR(self->only);
    }
    if (PyList_Append(self->waiting, data) < 0 || path_count(self, data) < 0) {
        return -1;
    }
    return first ? 2 : 1;
}

/* A piece that was taken from a message and could not be written waits as those of calls do. */
static int
path_keep(BodyPath *self)
{
    int failed = 0;

    if (self->only != NULL) {
        failed = PyList_Append(self->waiting, self->only);
        Py_CLEAR(self->only);
    }
    return failed;
}

/* How many bytes the connection's socket took; 0 where it takes none now, or something is wrong with it, of which
   the transport learns when it is given the rest. */
static Py_ssize_t
send_at_once(int descriptor, const char *bytes, Py_ssize_t size)
{
#if !defined(_WIN32) && defined(MSG_DONTWAIT) && defined(MSG_NOSIGNAL)
    ssize_t sent;

    do {
        sent = send(descriptor, bytes, (size_t)size, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent < 0 ? 0 : (Py_ssize_t)sent;
#else
    return 0;
#endif
}

static int
path_hand_over(BodyPath *self, PyObject *framed)
{
    PyObject *write = framed == NULL ? NULL : path_hold(self->write, "write");
    PyObject *result;

    self->empty = 0;
    result = write == NULL ? NULL : PyObject_CallOneArg(write, framed);
    Py_XDECREF(write);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* The first line of a chunk (RFC 9112 section 7.1); how long it is. */
static int
write_chunk_head(char *to, size_t size)
{
    static const char digits[] = "0123456789abcdef";
    int count = 1, at;
    size_t left;

    for (left = size >> 4; left != 0; left >>= 4) {
        count++;
    }
    for (at = count - 1; at >= 0; at--, size >>= 4) {
        to[at] = digits[size & 15];
    }
    memcpy(to + count, "\r\n", 2);
    return count + 2;
}

/* Writes a chunk of these pieces, which stay where they are. */
static int
path_write_chunk(BodyPath *self, PyObject **pieces, Py_ssize_t count, int unbuffered)
{
    Py_ssize_t at, size = 0, framed_bytes, sent = 0;
    PyObject *framed = NULL, *rest;
    char head[FRAMING_BYTES], small[FRAMED_BYTES], *begin, *to;
    int head_bytes, failed = 0;

    for (at = 0; at < count; at++) {
        if (PyBytes_GET_SIZE(pieces[at]) > PY_SSIZE_T_MAX - FRAMING_BYTES - size) {
            PyErr_NoMemory();
            return -1;
        }
        size += PyBytes_GET_SIZE(pieces[at]);
    }
    head_bytes = write_chunk_head(head, (size_t)size);
    framed_bytes = head_bytes + size + 2;
    if (unbuffered && framed_bytes <= FRAMED_BYTES) {
        begin = small;
    } else {
        framed = PyBytes_FromStringAndSize(NULL, framed_bytes);
        if (framed == NULL) {
            return -1;
        }
        begin = PyBytes_AS_STRING(framed);
    }
    memcpy(begin, head, (size_t)head_bytes);
    to = begin + head_bytes;
    for (at = 0; at < count; at++) {
        memcpy(to, PyBytes_AS_STRING(pieces[at]), (size_t)PyBytes_GET_SIZE(pieces[at]));
        to += PyBytes_GET_SIZE(pieces[at]);
    }
    memcpy(to, "\r\n", 2);
    self->last_bytes = (char)(size < LAST_BYTES ? size : LAST_BYTES);
    memcpy(self->last, to - self->last_bytes, (size_t)self->last_bytes);
    if (unbuffered) {
        sent = send_at_once(self->descriptor, begin, framed_bytes);
    }
    if (sent < framed_bytes) {
        rest = framed != NULL && sent == 0 ? Py_NewRef(framed)
                                           : PyBytes_FromStringAndSize(begin + sent, framed_bytes - sent);
        failed = path_hand_over(self, rest);
        Py_XDECREF(rest);
    }
    Py_XDECREF(framed);
    return failed;
}

/* What came in a message. */
static int
path_write_received(BodyPath *self)
{
    PyObject *only = self->only, *waiting;
    Py_ssize_t at, count;
    int failed;

    self->waiting_bytes = 0;
    if (only != NULL) {
        self->only = NULL;
        failed = path_write_chunk(self, &only, 1, self->unbuffered);
        Py_DECREF(only);
        return failed;
    }
    count = PyList_GET_SIZE(self->waiting);
    if (count == 0) {
        return 0;
    }
    waiting = PyList_GetSlice(self->waiting, 0, count); /* a write may call back */
    if (waiting == NULL) {
        return -1;
    }
    count = PyList_GET_SIZE(waiting);
    for (at = 0; at < count; at++) {
        if (!PyBytes_Check(PyList_GET_ITEM(waiting, at))) {
            PyErr_SetString(PyExc_TypeError, "a piece of a body is not bytes");
            Py_DECREF(waiting);
            return -1;
        }
    }
    if (PyList_SetSlice(self->waiting, 0, count, NULL) < 0) {
        Py_DECREF(waiting);
        return -1;
    }
    failed = path_write_chunk(self, ((PyListObject *)waiting)->ob_item, count, self->unbuffered);
    Py_DECREF(waiting);
    return failed;
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
    int unbuffered = PyList_GET_SIZE(self->waiting) == 0 ? 0 : path_is_unbuffered(self);

    if (unbuffered < 0) {
        return NULL;
    }
    self->unbuffered = (char)unbuffered;
    if (path_write_received(self) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
path_get_last(BodyPath *self, void *closure)
{
    return PyBytes_FromStringAndSize(self->last, self->last_bytes);
}

static int
path_set_last(BodyPath *self, PyObject *data, void *closure)
{
    Py_ssize_t size;

    if (data == NULL || !PyBytes_Check(data)) {
        PyErr_SetString(PyExc_TypeError, "what was written last is not bytes");
        return -1;
    }
    size = PyBytes_GET_SIZE(data);
    self->last_bytes = (char)(size < LAST_BYTES ? size : LAST_BYTES);
    memcpy(self->last, PyBytes_AS_STRING(data) + size - self->last_bytes, (size_t)self->last_bytes);
    return 0;
}

static PyObject *
path_get_open(BodyPath *self, void *closure)
{
    return PyBool_FromLong(self->open);
}

/* Before it is opened, and after it was closed, others may write to the connection. */
static int
path_set_open(BodyPath *self, PyObject *open, void *closure)
{
    if (open == NULL || !PyBool_Check(open)) {
        PyErr_SetString(PyExc_TypeError, "whether a path is open is a bool");
        return -1;
    }
    self->open = open == Py_True;
    self->empty = 0;
    return 0;
}

static PyGetSetDef path_properties[] = {
    {"open", (getter)path_get_open, (setter)path_set_open, "See shared.speedups.body_path.BodyPath.open.", NULL},
    {"last", (getter)path_get_last, (setter)path_set_last, "See shared.speedups.body_path.BodyPath.last.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

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
    {"descriptor", T_INT, offsetof(BodyPath, descriptor), 0, NULL},
    {"buffered_bytes", T_OBJECT, offsetof(BodyPath, buffered_bytes), 0, NULL},
    {"on_unsaid", T_OBJECT, offsetof(BodyPath, on_unsaid), 0, NULL},
    {"sent_bytes", T_LONGLONG, offsetof(BodyPath, sent_bytes), 0, NULL},
    {"pieces", T_LONGLONG, offsetof(BodyPath, pieces), 0, NULL},
    {"taken_bytes", T_LONGLONG, offsetof(BodyPath, taken_bytes), 0, NULL},
    {"unsaid_bytes", T_LONGLONG, offsetof(BodyPath, unsaid_bytes), 0, NULL},
    {"step_bytes", T_LONGLONG, offsetof(BodyPath, step_bytes), 0, NULL},
    {"waiting_bytes", T_LONGLONG, offsetof(BodyPath, waiting_bytes), READONLY, NULL},
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
    .tp_getset = path_properties,
};

/* --- Bytes of a body, counted: see body_path.py --- */

typedef struct {
    PyObject_HEAD
    long long granted, received;
} ReceivedBytes;

static PyMemberDef received_members[] = {
    {"granted", T_LONGLONG, offsetof(ReceivedBytes, granted), 0, NULL},
    {"received", T_LONGLONG, offsetof(ReceivedBytes, received), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject ReceivedBytesType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shared.speedups._native.ReceivedBytes",
    .tp_doc = "See shared.speedups.body_path.ReceivedBytes.",
    .tp_basicsize = sizeof(ReceivedBytes),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_members = received_members,
};

/* 0: done, -1: an error, which OverflowError is as well. */
static int
number_of(PyObject *object, PyObject *name, long long *number)
{
    PyObject *found = PyObject_GetAttr(object, name);
    int failed = found == NULL ? -1 : read_number(found, number);

    Py_XDECREF(found);
    return failed;
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

/* Counts of a credit. 0: done, -1: an error. */
static int
get_counts(PyObject *credit, long long *received, long long *granted)
{
    if (PyObject_TypeCheck(credit, &ReceivedBytesType)) {
        *received = ((ReceivedBytes *)credit)->received;
        *granted = ((ReceivedBytes *)credit)->granted;
        return 0;
    }
    return number_of(credit, name_received, received) < 0 || number_of(credit, name_granted, granted) < 0 ? -1 : 0;
}

static int
set_received(PyObject *credit, long long received)
{
    if (PyObject_TypeCheck(credit, &ReceivedBytesType)) {
        ((ReceivedBytes *)credit)->received = received;
        return 0;
    }
    return set_number(credit, name_received, received);
}

/* Where objects of one class with slots have what is looked up of streams, so that it is found without a search. */
typedef struct {
    PyTypeObject *type;
    Py_ssize_t peer, local, credit, path;
} StreamSlots;

static StreamSlots known_slots;

/* -1: the class has no such slot. One of another class is none, whatever name it has here. */
static Py_ssize_t
slot_of(PyTypeObject *type, PyObject *name)
{
    PyObject *found = type->tp_dict == NULL ? NULL : PyDict_GetItemWithError(type->tp_dict, name);
    PyMemberDef *member;

    if (found == NULL || !Py_IS_TYPE(found, &PyMemberDescr_Type)) {
        PyErr_Clear();
        return -1;
    }
    member = ((PyMemberDescrObject *)found)->d_member;
    return member->type == T_OBJECT_EX && PyType_IsSubtype(type, PyDescr_TYPE(found)) ? member->offset : -1;
}

/* They are known from then on, until streams of another class come: a caller keeps its own copy. */
static StreamSlots
find_slots(PyTypeObject *type)
{
    StreamSlots found, before = known_slots;

    if (before.type == type) {
        return before;
    }
    found.peer = slot_of(type, name_peer);
    found.local = slot_of(type, name_local);
    found.credit = slot_of(type, name_credit);
    found.path = slot_of(type, name_path);
    found.type = (PyTypeObject *)Py_NewRef(type);
    before = known_slots;
    known_slots = found;
    Py_XDECREF(before.type); /* the end of a class may call back */
    return found;
}

/* A new reference; NULL: an error. */
static PyObject *
stream_get(PyObject *stream, Py_ssize_t offset, PyObject *name)
{
    if (offset >= 0) {
        PyObject *found = *(PyObject **)((char *)stream + offset);
        if (found != NULL) {
            return Py_NewRef(found);
        }
    }
    return PyObject_GetAttr(stream, name);
}

/* 1: DATA of the stream is wanted, 0: not so, -1: an error. */
static int
wants_body(PyObject *stream, const StreamSlots *slots, PyObject *states)
{
    PyObject *peer, *local;
    int wanted;

    peer = stream_get(stream, slots->peer, name_peer);
    if (peer == NULL) {
        return -1;
    }
    Py_DECREF(peer); /* the stream holds it; only its address is compared */
    if (peer != PyTuple_GET_ITEM(states, 0)) {
        return 0;
    }
    local = stream_get(stream, slots->local, name_local);
    if (local == NULL) {
        return -1;
    }
    wanted = local != PyTuple_GET_ITEM(states, 1) && local != PyTuple_GET_ITEM(states, 2);
    Py_DECREF(local);
    return wanted;
}

/* An event of a piece that no path takes. 0: done, -1: an error. */
static int
append_event(PyObject *events, PyObject *event_type, PyObject *key, PyObject *data)
{
    PyObject *fields[] = {key, data};
    PyObject *event = PyObject_Vectorcall(event_type, fields, 2, NULL);
    int failed = event == NULL ? -1 : PyList_Append(events, event);

    Py_XDECREF(event);
    return failed;
}

/* The stream's path takes a piece, or an event does. 0: done, -1: an error. */
static int
pass_on(PyObject *stream, const StreamSlots *slots, PyObject *key, PyObject *data, PyObject *touched, int at_once,
        PyObject *events, PyObject *event_type)
{
    PyObject *path = stream_get(stream, slots->path, name_path);
    int taken = 0;

    if (path == NULL) {
        return -1;
    }
    if (Py_IS_TYPE(path, &BodyPathType)) {
        taken = path_receive((BodyPath *)path, data, at_once);
        if (taken == 2) {
            taken = PyList_Append(touched, path) < 0 ? -1 : 1;
        } else if (taken == 0) {
            ((BodyPath *)path)->open = 0; /* or the next piece would overtake this one */
        }
    } else if (path != Py_None) {
        PyErr_SetString(PyExc_TypeError, "a stream's path is of another kind");
        taken = -1;
    }
    Py_DECREF(path);
    return taken == 0 ? append_event(events, event_type, key, data) : taken < 0 ? -1 : 0;
}

/* All paths are written, whatever comes of it: those of which much is unsaid, or NULL after an error. */
static PyObject *
write_touched(PyObject *touched)
{
    PyObject *due = PyList_New(0);
    Py_ssize_t at;

    if (due == NULL) {
        return NULL;
    }
    for (at = 0; at < PyList_GET_SIZE(touched); at++) {
        BodyPath *path = (BodyPath *)PyList_GET_ITEM(touched, at);
        if (path_write_received(path) < 0 ||
            (path->unsaid_bytes >= path->step_bytes && PyList_Append(due, (PyObject *)path) < 0)) {
            Py_DECREF(due);
            return NULL;
        }
    }
    return due;
}

#define MOST_WAITING_BYTES (32 * 1024) /* as in body_path.py */

/* Of those that are written later, the ones for which much waits are written now. 0: done, -1: an error. */
static int
write_long(PyObject *touched)
{
    Py_ssize_t at;

    for (at = 0; at < PyList_GET_SIZE(touched); at++) {
        BodyPath *path = (BodyPath *)PyList_GET_ITEM(touched, at);
        if (Py_IS_TYPE(path, &BodyPathType) && path->waiting_bytes >= MOST_WAITING_BYTES) {
            PyObject *done;
            Py_INCREF(path); /* a write may call back */
            done = path_flush(path, NULL);
            Py_DECREF(path);
            Py_XDECREF(done);
            if (done == NULL) {
                return -1;
            }
        }
    }
    return 0;
}

/* After an error, which stays: what was not written waits. */
static void
keep_touched(PyObject *touched)
{
    PyObject *kind, *value, *traceback;
    Py_ssize_t at;

    PyErr_Fetch(&kind, &value, &traceback);
    for (at = 0; at < PyList_GET_SIZE(touched); at++) {
        if (path_keep((BodyPath *)PyList_GET_ITEM(touched, at)) < 0) {
            PyErr_Clear();
        }
    }
    PyErr_Restore(kind, value, traceback);
}

#define HEADER_BYTES 9

PyDoc_STRVAR(receive_bodies_doc,
"receive_bodies(message, start, streams, session, events, event_type, states, frame_type, most_bytes, later=None)\n"
"--\n\nSee shared.speedups.body_path.receive_bodies.");

static PyObject *
receive_bodies(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    PyObject *message, *streams, *session, *events, *event_type, *states;
    PyObject *touched = NULL, *due = NULL, *result = NULL, *key = NULL, *stream = NULL, *later;
    const unsigned char *bytes;
    Py_ssize_t start, size;
    long long frame_type, most_bytes, session_received, session_granted, in_session;

    later = count == 10 && args[9] != Py_None ? args[9] : NULL;
    if ((count != 9 && count != 10) || (later != NULL && !PyList_Check(later)) || !PyBytes_Check(args[0]) || !PyDict_Check(args[2]) || !PyList_Check(args[4]) ||
        !PyType_Check(args[5]) || !PyTuple_Check(args[6]) || PyTuple_GET_SIZE(args[6]) != 3) {
        PyErr_SetString(PyExc_TypeError, "receive_bodies was called with something else than it takes");
        return NULL;
    }
    message = args[0], streams = args[2], session = args[3], events = args[4], event_type = args[5], states = args[6];
    start = PyLong_AsSsize_t(args[1]);
    if ((start == -1 && PyErr_Occurred()) || read_number(args[7], &frame_type) < 0 ||
        read_number(args[8], &most_bytes) < 0) {
        return NULL;
    }
    bytes = (const unsigned char *)PyBytes_AS_STRING(message);
    size = PyBytes_GET_SIZE(message);
    if (start < 0) {
        PyErr_SetString(PyExc_ValueError, "start lies before the message");
        return NULL;
    }
    if (get_counts(session, &session_received, &session_granted) < 0) {
        return NULL;
    }
    in_session = session_received;
    touched = later != NULL ? Py_NewRef(later) : PyList_New(0);
    if (touched == NULL) {
        return NULL;
    }
    while (start < size - HEADER_BYTES) {
        const unsigned char *head = bytes + start;
        uint32_t stream_id = ((uint32_t)head[1] << 24) | ((uint32_t)head[2] << 16) | ((uint32_t)head[3] << 8) | head[4];
        uint32_t length = ((uint32_t)head[5] << 24) | ((uint32_t)head[6] << 16) | ((uint32_t)head[7] << 8) | head[8];
        Py_ssize_t begin = start + HEADER_BYTES;
        PyObject *credit, *data;
        StreamSlots slots;
        long long received, granted;
        int failed;

        if (head[0] != frame_type || length == 0 || length > most_bytes || length > (size_t)(size - begin)) {
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
        Py_INCREF(stream); /* what is asked of it may call back */
        slots = find_slots(Py_TYPE(stream));
        failed = wants_body(stream, &slots, states);
        if (failed < 0) {
            goto done;
        }
        if (!failed) {
            break;
        }
        credit = stream_get(stream, slots.credit, name_credit);
        if (credit == NULL) {
            goto done;
        }
        if (get_counts(credit, &received, &granted) < 0) {
            Py_DECREF(credit);
            goto done;
        }
        if (exceeds(received, length, granted) || exceeds(in_session, length, session_granted)) {
            Py_DECREF(credit);
            break;
        }
        failed = set_received(credit, received + length);
        Py_DECREF(credit);
        if (failed < 0) {
            goto done;
        }
        in_session += length;
        data = PyBytes_FromStringAndSize((const char *)bytes + begin, (Py_ssize_t)length);
        if (data == NULL) {
            goto done;
        }
        failed = pass_on(stream, &slots, key, data, touched, later == NULL, events, event_type);
        Py_DECREF(data);
        Py_CLEAR(key);
        Py_CLEAR(stream);
        if (failed < 0) {
            goto done;
        }
        start = begin + (Py_ssize_t)length;
    }
    if (in_session != session_received) {
        session_received = in_session; /* before anything is written, which may call back */
        if (set_received(session, in_session) < 0) {
            goto done;
        }
    }
    if (later != NULL) {
        due = write_long(later) < 0 ? NULL : PyList_New(0);
    } else {
        due = write_touched(touched);
    }
    if (due != NULL) {
        result = Py_BuildValue("(nO)", start, due);
    }
done:
    if (result == NULL && later == NULL) {
        keep_touched(touched);
    }
    if (result == NULL && in_session != session_received) { /* what was counted for a stream counts here too */
        PyObject *kind, *value, *traceback;
        PyErr_Fetch(&kind, &value, &traceback);
        if (set_received(session, in_session) < 0) {
            PyErr_Clear();
        }
        PyErr_Restore(kind, value, traceback);
    }
    Py_XDECREF(key);
    Py_XDECREF(stream);
    Py_XDECREF(touched);
    Py_XDECREF(due);
    return result;
}

PyDoc_STRVAR(write_bodies_doc,
"write_bodies(touched)\n--\n\nSee shared.speedups.body_path.write_bodies.");

static PyObject *
write_bodies(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    PyObject *paths = NULL, *due = NULL, *done;
    Py_ssize_t at, size;

    if (count != 1 || !PyList_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "write_bodies takes a list");
        return NULL;
    }
    size = PyList_GET_SIZE(args[0]);
    paths = PyList_GetSlice(args[0], 0, size); /* a write may call back */
    if (paths == NULL || PyList_SetSlice(args[0], 0, size, NULL) < 0) {
        goto failed;
    }
    due = PyList_New(0);
    if (due == NULL) {
        goto failed;
    }
    for (at = 0; at < PyList_GET_SIZE(paths); at++) {
        BodyPath *path = (BodyPath *)PyList_GET_ITEM(paths, at);
        if (!Py_IS_TYPE(path, &BodyPathType)) {
            PyErr_SetString(PyExc_TypeError, "a path is of another kind");
            goto failed;
        }
        done = path_flush(path, NULL);
        Py_XDECREF(done);
        if (done == NULL || (path->unsaid_bytes >= path->step_bytes && PyList_Append(due, (PyObject *)path) < 0)) {
            goto failed;
        }
    }
    Py_DECREF(paths);
    return due;
failed:
    Py_XDECREF(paths);
    Py_XDECREF(due);
    return NULL;
}

static PyMethodDef methods[] = {
    {"cut_frames", (PyCFunction)(void (*)(void))cut_frames, METH_FASTCALL,
     "See shared.speedups.session_frames.cut_frames."},
    {"cut_messages", (PyCFunction)(void (*)(void))cut_messages, METH_FASTCALL, cut_messages_doc},
    {"frame_messages", (PyCFunction)(void (*)(void))frame_messages, METH_FASTCALL, frame_messages_doc},
    {"receive_bodies", (PyCFunction)(void (*)(void))receive_bodies, METH_FASTCALL, receive_bodies_doc},
    {"write_bodies", (PyCFunction)(void (*)(void))write_bodies, METH_FASTCALL, write_bodies_doc},
    {"read_ready", (PyCFunction)(void (*)(void))read_ready, METH_FASTCALL, "See shared.speedups.read_path.read_ready."},
    {"take_turns", (PyCFunction)(void (*)(void))take_turns, METH_FASTCALL, "See shared.speedups.out_path.take_turns."},
    {"collapse_pages", collapse_pages, METH_NOARGS, "See shared.speedups.huge_pages.collapse_pages."},
    {"use_huge_pages", use_huge_pages, METH_NOARGS, "See shared.speedups.huge_pages.use_huge_pages."},
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
    if (PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0) {
        return -1;
    }
    if (PyModule_AddType(module, &BodyPathType) < 0 || PyModule_AddType(module, &ReceivedBytesType) < 0) {
        return -1;
    }
    return prepare_out(module) < 0 ? -1 : prepare_head(module);
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
