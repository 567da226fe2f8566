/* Native twins of out_path.py. Nothing here decides: bytes and counters only. */

#include "_native.h"
#include <structmember.h>
#include <stddef.h>
#include <string.h>

static PyObject *name_append, *name_clear, *name_closed, *name_popleft, *name_wake;

/* An attribute that the objects in use keep in a slot of theirs (``__slots__``). Its place is learned from the first
   of them; in objects of other types it is looked up. */
typedef struct {
    PyObject *name;
    PyTypeObject *type;
    Py_ssize_t offset;
} Slot;

static Slot slot_chunks, slot_credit, slot_end, slot_head, slot_interactive, slot_limit, slot_local, slot_out, slot_peer,
    slot_pending_bytes, slot_queued, slot_sent, slot_stream_id, slot_waiting;

/* Where the object keeps the attribute; NULL: it has to be looked up. */
static PyObject **
find_slot(PyObject *object, Slot *slot)
{
    PyTypeObject *type = Py_TYPE(object);

    if (slot->type == NULL && type->tp_getattro == PyObject_GenericGetAttr &&
        type->tp_setattro == PyObject_GenericSetAttr) {
        PyObject *found = PyObject_GetAttr((PyObject *)type, slot->name);
        if (found == NULL) {
            PyErr_Clear();
        } else if (Py_IS_TYPE(found, &PyMemberDescr_Type)) {
            PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
            if (member->type == T_OBJECT_EX && !(member->flags & READONLY) &&
                PyType_IsSubtype(type, PyDescr_TYPE(found))) {
                slot->type = (PyTypeObject *)Py_NewRef(type); /* for good */
                slot->offset = member->offset;
            }
        }
        Py_XDECREF(found);
    }
    return type == slot->type ? (PyObject **)((char *)object + slot->offset) : NULL;
}

static PyObject *
get(PyObject *object, Slot *slot)
{
    PyObject **place = find_slot(object, slot);

    return place != NULL && *place != NULL ? Py_NewRef(*place) : PyObject_GetAttr(object, slot->name);
}

/* 0: done, -1: an error. */
static int
put(PyObject *object, Slot *slot, PyObject *value)
{
    PyObject **place = find_slot(object, slot);

    if (place == NULL) {
        return PyObject_SetAttr(object, slot->name, value);
    }
    Py_XSETREF(*place, Py_NewRef(value));
    return 0;
}

/* 0: done, -1: an error, which OverflowError is as well. */
static int
get_number(PyObject *object, Slot *slot, long long *number)
{
    PyObject *found = get(object, slot);
    int failed = found == NULL ? -1 : read_number(found, number);

    Py_XDECREF(found);
    return failed;
}

static int
put_number(PyObject *object, Slot *slot, long long number)
{
    PyObject *value = PyLong_FromLongLong(number);
    int failed;

    if (value == NULL) {
        return -1;
    }
    failed = put(object, slot, value);
    Py_DECREF(value);
    return failed;
}

/* Of what was got. 1: it is true, 0: it is not, -1: an error. */
static int
truth_of(PyObject *found)
{
    int truth;

    if (found == NULL) {
        return -1;
    }
    truth = PyObject_IsTrue(found);
    Py_DECREF(found);
    return truth;
}

/* 1: ``object`` has ``value`` under this name, 0: something else, -1: an error. */
static int
is_same(PyObject *object, Slot *slot, PyObject *value)
{
    PyObject *found = get(object, slot);

    if (found == NULL) {
        return -1;
    }
    Py_DECREF(found); /* compared and not used */
    return found == value;
}

static int
call(PyObject *object, PyObject *name, PyObject *argument)
{
    PyObject *result = argument == NULL ? PyObject_CallMethodNoArgs(object, name)
                                        : PyObject_CallMethodOneArg(object, name, argument);

    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* --- OutPath --- */

typedef struct {
    PyObject_HEAD
    PyObject *stream, *session, *endpoint, *ready, *body, *reset;
    long long most_bytes;
    char open;
} OutPath;

static PyTypeObject OutPathType;

static int
out_traverse(OutPath *self, visitproc visit, void *arg)
{
    Py_VISIT(self->stream);
    Py_VISIT(self->session);
    Py_VISIT(self->endpoint);
    Py_VISIT(self->ready);
    Py_VISIT(self->body);
    Py_VISIT(self->reset);
    return 0;
}

static int
out_clear(OutPath *self)
{
    Py_CLEAR(self->stream);
    Py_CLEAR(self->session);
    Py_CLEAR(self->endpoint);
    Py_CLEAR(self->ready);
    Py_CLEAR(self->body);
    Py_CLEAR(self->reset);
    return 0;
}

static void
out_dealloc(OutPath *self)
{
    PyObject_GC_UnTrack(self);
    out_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
out_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stream", "session", "endpoint", "ready", "states", "most_bytes", NULL};
    PyObject *stream, *session, *endpoint, *ready, *body, *reset;
    long long most_bytes;
    OutPath *self;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOO(OO)L", names, &stream, &session, &endpoint, &ready, &body,
                                     &reset, &most_bytes)) {
        return NULL;
    }
    self = (OutPath *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->stream = Py_NewRef(stream);
    self->session = Py_NewRef(session);
    self->endpoint = Py_NewRef(endpoint);
    self->ready = Py_NewRef(ready);
    self->body = Py_NewRef(body);
    self->reset = Py_NewRef(reset);
    self->most_bytes = most_bytes;
    return (PyObject *)self;
}

#define USAGE "\"usage\""
#define USAGE_BYTES 7
#define USAGE_RARE 4 /* the place of the letter in it that a text has least of */

static int
says_usage(const char *bytes, Py_ssize_t size)
{
    const char *from = bytes + USAGE_RARE, *end = bytes + size - (USAGE_BYTES - 1 - USAGE_RARE);

    while (from < end) {
        const char *found = memchr(from, USAGE[USAGE_RARE], (size_t)(end - from));
        if (found == NULL) {
            return 0;
        }
        if (memcmp(found - USAGE_RARE, USAGE, USAGE_BYTES) == 0) {
            return 1;
        }
        from = found + 1;
    }
    return 0;
}

/* Put it among those that have something to send, if it may. 0: done, -1: an error. */
static int
out_queue(OutPath *self, PyObject *out)
{
    PyObject *head = get(out, &slot_head), *credit;
    long long sent = 0, limit = 1;

    if (head == NULL) {
        return -1;
    }
    Py_DECREF(head); /* compared and not used */
    if (head == Py_None) {
        int failed;
        credit = get(out, &slot_credit);
        if (credit == NULL) {
            return -1;
        }
        failed = get_number(credit, &slot_sent, &sent) < 0 || get_number(credit, &slot_limit, &limit) < 0;
        Py_DECREF(credit);
        if (failed) {
            return -1;
        }
    }
    if (sent >= limit) {
        return 0;
    }
    return put(out, &slot_queued, Py_True) < 0 || call(self->ready, name_append, out) < 0 ? -1 : 0;
}

/* The same for the piece and its stream's ``out``. 1: taken, 0: not, -1: an error. */
static int
out_put(OutPath *self, PyObject *out, PyObject *data)
{
    long long pending_bytes;
    PyObject *chunks;
    int truth;

    if (get_number(out, &slot_pending_bytes, &pending_bytes) < 0) {
        return -1;
    }
    pending_bytes = add_up(pending_bytes, PyBytes_GET_SIZE(data));
    truth = truth_of(get(out, &slot_waiting));
    if (truth != 0) {
        return truth < 0 ? -1 : 0;
    }
    truth = truth_of(get(out, &slot_interactive));
    if (truth <= 0 || pending_bytes > self->most_bytes) {
        return truth < 0 ? -1 : 0;
    }
    chunks = get(out, &slot_chunks);
    if (chunks == NULL) {
        return -1;
    }
    truth = call(chunks, name_append, data);
    Py_DECREF(chunks);
    if (truth < 0 || put_number(out, &slot_pending_bytes, pending_bytes) < 0) {
        return -1;
    }
    truth = truth_of(get(out, &slot_queued));
    if (truth < 0 || (truth == 0 && out_queue(self, out) < 0)) {
        return -1;
    }
    return call(self->endpoint, name_wake, NULL) < 0 ? -1 : 1;
}

/* 1: taken, 0: not, -1: an error. */
static int
out_offer(OutPath *self, PyObject *data)
{
    const char *bytes = PyBytes_AS_STRING(data);
    Py_ssize_t size = PyBytes_GET_SIZE(data);
    PyObject *out;
    int truth;

    if (!self->open || self->stream == NULL || size < 2 || memcmp(bytes + size - 2, "\n\n", 2) != 0 || says_usage(bytes, size)) {
        return 0;
    }
    truth = is_same(self->stream, &slot_local, self->body);
    if (truth <= 0) {
        return truth;
    }
    truth = is_same(self->stream, &slot_peer, self->reset);
    if (truth == 0) {
        truth = truth_of(PyObject_GetAttr(self->session, name_closed));
    }
    if (truth != 0) {
        return truth < 0 ? -1 : 0;
    }
    out = get(self->stream, &slot_out);
    if (out == NULL) {
        return -1;
    }
    truth = out_put(self, out, data);
    Py_DECREF(out);
    return truth;
}

static PyObject *
out_take(OutPath *self, PyObject *data)
{
    int taken;

    if (!PyBytes_Check(data)) {
        PyErr_SetString(PyExc_TypeError, "a piece of a body is not bytes");
        return NULL;
    }
    taken = out_offer(self, data);
    return taken < 0 ? NULL : PyBool_FromLong(taken);
}

static PyMethodDef out_methods[] = {
    {"take", (PyCFunction)out_take, METH_O, "See shared.speedups.out_path.OutPath.take."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef out_members[] = {
    {"open", T_BOOL, offsetof(OutPath, open), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject OutPathType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shared.speedups._native.OutPath",
    .tp_doc = "See shared.speedups.out_path.OutPath.",
    .tp_basicsize = sizeof(OutPath),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = out_new,
    .tp_traverse = (traverseproc)out_traverse,
    .tp_clear = (inquiry)out_clear,
    .tp_dealloc = (destructor)out_dealloc,
    .tp_methods = out_methods,
    .tp_members = out_members,
};

/* --- ChunkReader --- */

typedef struct {
    PyObject_HEAD
    PyObject *otherwise, *now, *unread, *path;
    vectorcallfunc vectorcall;
    double heard_s;
    long long pieces;
    Py_ssize_t missing_bytes;
} ChunkReader;

static int
reader_traverse(ChunkReader *self, visitproc visit, void *arg)
{
    Py_VISIT(self->otherwise);
    Py_VISIT(self->now);
    Py_VISIT(self->unread);
    Py_VISIT(self->path);
    return 0;
}

static int
reader_clear(ChunkReader *self)
{
    Py_CLEAR(self->otherwise);
    Py_CLEAR(self->now);
    Py_CLEAR(self->unread);
    Py_CLEAR(self->path);
    return 0;
}

static void
reader_dealloc(ChunkReader *self)
{
    PyObject_GC_UnTrack(self);
    reader_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static void
follow_no_longer(ChunkReader *self)
{
    Py_XSETREF(self->path, Py_NewRef(Py_None));
}

/* Skip what is missing of a chunk, as far as it is there, and look whether a line ends there. */
static Py_ssize_t
reader_skip(ChunkReader *self, const char *bytes, Py_ssize_t size, Py_ssize_t start)
{
    Py_ssize_t missing = self->missing_bytes, left = size - start;
    int no_end = (missing >= 2 && missing - 2 < left && bytes[start + missing - 2] != '\r') ||
                 (missing >= 1 && missing - 1 < left && bytes[start + missing - 1] != '\n');

    if (missing > left) {
        missing = left;
    }
    self->missing_bytes -= missing;
    if (no_end) {
        follow_no_longer(self); /* the end of a path may call back */
    }
    return start + missing;
}

#define CHUNK_DIGITS 7 /* fewer than a size overflows with */

/* The size that a plain chunk's first line gives, and where that line ends; 0: it is none. */
static Py_ssize_t
chunk_size(const char *bytes, Py_ssize_t size, Py_ssize_t *start)
{
    Py_ssize_t at = *start, last = at + CHUNK_DIGITS;
    uint32_t value = 0;

    for (; at < size && at < last; at++) {
        char digit = bytes[at];
        if (digit >= '0' && digit <= '9') {
            value = (value << 4) | (uint32_t)(digit - '0');
        } else if ((digit >= 'a' && digit <= 'f') || (digit >= 'A' && digit <= 'F')) {
            value = (value << 4) | (uint32_t)((digit | 0x20) - 'a' + 10);
        } else {
            break;
        }
    }
    if (value == 0 || size - at < 2 || bytes[at] != '\r' || bytes[at + 1] != '\n') {
        return 0;
    }
    *start = at + 2;
    return (Py_ssize_t)value;
}

/* What lies in ``data`` from ``start`` on: how many bytes of how many chunks, and where the first begins. It is
   followed no longer when something comes that is no plain chunk. */
static Py_ssize_t
reader_scan(ChunkReader *self, const char *bytes, Py_ssize_t size, Py_ssize_t start, Py_ssize_t *chunks,
            Py_ssize_t *first)
{
    Py_ssize_t body_bytes = 0;

    *chunks = 0;
    if (self->missing_bytes) {
        start = reader_skip(self, bytes, size, start);
    }
    while (self->path != Py_None && start < size) {
        Py_ssize_t length = chunk_size(bytes, size, &start);
        if (length == 0) {
            follow_no_longer(self);
            break;
        }
        if (*chunks == 0) {
            *first = start;
        }
        *chunks += 1;
        self->missing_bytes = length + 2;
        start = reader_skip(self, bytes, size, start);
        if (self->missing_bytes) {
            break;
        }
        body_bytes += length;
    }
    return body_bytes;
}

/* The body of so many whole chunks, of which the first begins at ``first``. */
static PyObject *
join_chunks(const char *bytes, Py_ssize_t size, Py_ssize_t first, Py_ssize_t chunks, Py_ssize_t body_bytes)
{
    PyObject *body;
    char *to;
    Py_ssize_t at = 0;

    if (chunks == 1) {
        return PyBytes_FromStringAndSize(bytes + first, body_bytes);
    }
    body = PyBytes_FromStringAndSize(NULL, body_bytes);
    if (body == NULL) {
        return NULL;
    }
    to = PyBytes_AS_STRING(body);
    while (chunks-- > 0) {
        Py_ssize_t length = chunk_size(bytes, size, &at);
        memcpy(to, bytes + at, (size_t)length);
        to += length;
        at += length + 2;
    }
    return body;
}

/* Offer the path what came. 1: taken, 0: not, -1: an error. */
static int
reader_offer(ChunkReader *self, PyObject *data)
{
    const char *bytes = PyBytes_AS_STRING(data);
    Py_ssize_t size = PyBytes_GET_SIZE(data), chunks, first = 0, body_bytes, waiting;
    int whole = self->missing_bytes == 0, taken;
    PyObject *body, *path, *unread, *now, *heard_s;

    body_bytes = reader_scan(self, bytes, size, 0, &chunks, &first);
    if (self->path == Py_None || !whole || chunks == 0 || self->missing_bytes) {
        return 0;
    }
    if (self->unread == NULL) { /* closed meanwhile */
        return 0;
    }
    path = Py_NewRef(self->path); /* who is asked how much is unread may call back */
    unread = Py_NewRef(self->unread);
    waiting = PyObject_Length(unread);
    Py_DECREF(unread);
    body = waiting != 0 ? NULL : join_chunks(bytes, size, first, chunks, body_bytes);
    if (body == NULL) {
        Py_DECREF(path);
        return waiting > 0 ? 0 : -1;
    }
    taken = out_offer((OutPath *)path, body);
    Py_DECREF(path);
    Py_DECREF(body);
    if (taken <= 0) {
        return taken;
    }
    self->pieces = add_up(self->pieces, 1);
    if (self->now == NULL) { /* closed meanwhile */
        return 1;
    }
    now = Py_NewRef(self->now);
    heard_s = PyObject_CallNoArgs(now);
    Py_DECREF(now);
    if (heard_s == NULL) {
        return -1;
    }
    self->heard_s = PyFloat_AsDouble(heard_s);
    Py_DECREF(heard_s);
    return self->heard_s == -1.0 && PyErr_Occurred() ? -1 : 1;
}

static PyObject *
reader_call(PyObject *callable, PyObject *const *args, size_t count, PyObject *names)
{
    ChunkReader *self = (ChunkReader *)callable;
    PyObject *otherwise, *result;

    if (PyVectorcall_NARGS(count) != 1 || names != NULL) {
        PyErr_SetString(PyExc_TypeError, "a reader of chunks takes bytes");
        return NULL;
    }
    if (self->otherwise == NULL) { /* closed */
        Py_RETURN_NONE;
    }
    if (self->path != Py_None) {
        int taken;
        if (!PyBytes_Check(args[0])) {
            PyErr_SetString(PyExc_TypeError, "a reader of chunks takes bytes");
            return NULL;
        }
        taken = reader_offer(self, args[0]);
        if (taken < 0) {
            return NULL;
        }
        if (taken) {
            Py_RETURN_NONE;
        }
        if (self->otherwise == NULL) { /* closed meanwhile */
            Py_RETURN_NONE;
        }
    }
    otherwise = Py_NewRef(self->otherwise);
    result = PyObject_CallOneArg(otherwise, args[0]);
    Py_DECREF(otherwise);
    return result;
}

static PyObject *
reader_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"otherwise", "now", "unread", NULL};
    PyObject *otherwise, *now, *unread;
    ChunkReader *self;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO", names, &otherwise, &now, &unread)) {
        return NULL;
    }
    self = (ChunkReader *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->otherwise = Py_NewRef(otherwise);
    self->now = Py_NewRef(now);
    self->unread = Py_NewRef(unread);
    self->path = Py_NewRef(Py_None);
    self->vectorcall = reader_call;
    return (PyObject *)self;
}

static PyObject *
reader_follow(ChunkReader *self, PyObject *const *args, Py_ssize_t count)
{
    Py_ssize_t start, chunks, first;

    if (self->otherwise == NULL) { /* closed */
        Py_RETURN_NONE;
    }
    if (count != 3 || !Py_IS_TYPE(args[0], &OutPathType) || !PyBytes_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "follow takes an OutPath, bytes and a number");
        return NULL;
    }
    start = PyLong_AsSsize_t(args[2]);
    if (start == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (start < 0 || start > PyBytes_GET_SIZE(args[1])) {
        PyErr_SetString(PyExc_ValueError, "start lies outside of data");
        return NULL;
    }
    Py_XSETREF(self->path, Py_NewRef(args[0]));
    self->missing_bytes = 0;
    reader_scan(self, PyBytes_AS_STRING(args[1]), PyBytes_GET_SIZE(args[1]), start, &chunks, &first);
    Py_RETURN_NONE;
}

static PyObject *
reader_close(ChunkReader *self, PyObject *none)
{
    follow_no_longer(self);
    Py_CLEAR(self->otherwise);
    Py_CLEAR(self->now);
    Py_CLEAR(self->unread);
    Py_RETURN_NONE;
}

static PyObject *
reader_get_path(ChunkReader *self, void *closure)
{
    return Py_NewRef(self->path == NULL ? Py_None : self->path);
}

static int
reader_set_path(ChunkReader *self, PyObject *path, void *closure)
{
    if (path == NULL || (path != Py_None && !Py_IS_TYPE(path, &OutPathType))) {
        PyErr_SetString(PyExc_TypeError, "a path is an OutPath or None");
        return -1;
    }
    Py_XSETREF(self->path, Py_NewRef(path));
    return 0;
}

static PyMethodDef reader_methods[] = {
    {"close", (PyCFunction)reader_close, METH_NOARGS, "See shared.speedups.out_path.ChunkReader.close."},
    {"follow", (PyCFunction)(void (*)(void))reader_follow, METH_FASTCALL,
     "See shared.speedups.out_path.ChunkReader.follow."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef reader_members[] = {
    {"heard_s", T_DOUBLE, offsetof(ChunkReader, heard_s), 0, NULL},
    {"pieces", T_LONGLONG, offsetof(ChunkReader, pieces), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef reader_getset[] = {
    {"path", (getter)reader_get_path, (setter)reader_set_path, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject ChunkReaderType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shared.speedups._native.ChunkReader",
    .tp_doc = "See shared.speedups.out_path.ChunkReader.",
    .tp_basicsize = sizeof(ChunkReader),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = reader_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(ChunkReader, vectorcall),
    .tp_traverse = (traverseproc)reader_traverse,
    .tp_clear = (inquiry)reader_clear,
    .tp_dealloc = (destructor)reader_dealloc,
    .tp_methods = reader_methods,
    .tp_members = reader_members,
    .tp_getset = reader_getset,
};

/* --- take_turns --- */

#define HEADER_BYTES 9

/* Append a part of a stream, its head or its end, if there is one, and forget it there. 1: there was, 0: there was
   none, -1: an error. */
static int
take_part(PyObject *stream, Slot *slot, PyObject *pieces, long long *left_bytes)
{
    PyObject *part = get(stream, slot);
    Py_ssize_t size;
    int failed;

    if (part == NULL || part == Py_None) {
        Py_XDECREF(part);
        return part == NULL ? -1 : 0;
    }
    size = PyObject_Length(part);
    failed = size < 0 || PyList_Append(pieces, part) < 0 || put(stream, slot, Py_None) < 0;
    Py_DECREF(part);
    *left_bytes = size < 0 ? *left_bytes : add_up(*left_bytes, -size);
    return failed ? -1 : 1;
}

/* Append the frame of a body. */
static int
take_body(PyObject *stream, PyObject *pieces, PyObject *chunks, long long frame_type, long long size_bytes)
{
    unsigned char header[HEADER_BYTES];
    long long stream_id;
    PyObject *made, *rest;
    int shift, at = 0, failed;

    if (get_number(stream, &slot_stream_id, &stream_id) < 0) {
        return -1;
    }
    if (stream_id < 0 || stream_id > UINT32_MAX || frame_type < 0 || frame_type > 255) {
        PyErr_SetString(PyExc_ValueError, "a frame's header cannot hold this");
        return -1;
    }
    header[at++] = (unsigned char)frame_type;
    for (shift = 24; shift >= 0; shift -= 8) {
        header[at++] = (unsigned char)(stream_id >> shift);
    }
    for (shift = 24; shift >= 0; shift -= 8) {
        header[at++] = (unsigned char)(size_bytes >> shift);
    }
    made = PyBytes_FromStringAndSize((const char *)header, HEADER_BYTES);
    if (made == NULL) {
        return -1;
    }
    failed = PyList_Append(pieces, made);
    Py_DECREF(made);
    if (failed) {
        return -1;
    }
    rest = PySequence_InPlaceConcat(pieces, chunks);
    if (rest == NULL) {
        return -1;
    }
    Py_DECREF(rest); /* it is ``pieces`` */
    return call(chunks, name_clear, NULL) < 0 || put_number(stream, &slot_pending_bytes, 0) < 0 ? -1 : 0;
}

/* One stream's credit, its session's and what they have sent. */
typedef struct {
    PyObject *session;
    long long most_bytes, frame_type, left_bytes, session_sent, session_limit;
} Turns;

/* 1: the first stream's turn was taken, 0: it is for another to take, -1: an error. */
static int
take_turn(Turns *turns, PyObject *ready, PyObject *stream, PyObject *pieces, PyObject *ended)
{
    PyObject *credit = NULL, *chunks;
    long long size_bytes, sent, limit;
    int truth, done = -1;

    if (get_number(stream, &slot_pending_bytes, &size_bytes) < 0) {
        return -1;
    }
    credit = get(stream, &slot_credit);
    if (credit == NULL || get_number(credit, &slot_sent, &sent) < 0 || get_number(credit, &slot_limit, &limit) < 0) {
        goto end;
    }
    truth = truth_of(get(stream, &slot_waiting));
    if (truth != 0 || size_bytes > turns->most_bytes || exceeds(sent, size_bytes, limit) ||
        exceeds(turns->session_sent, size_bytes, turns->session_limit)) {
        done = truth < 0 ? -1 : 0;
        goto end;
    }
    if (size_bytes < 0 || size_bytes > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a frame's header cannot hold this");
        goto end;
    }
    if (call(ready, name_popleft, NULL) < 0 || put(stream, &slot_queued, Py_False) < 0 ||
        take_part(stream, &slot_head, pieces, &turns->left_bytes) < 0) {
        goto end;
    }
    if (size_bytes) {
        if (put_number(credit, &slot_sent, sent + size_bytes) < 0 ||
            put_number(turns->session, &slot_sent, turns->session_sent + size_bytes) < 0) {
            goto end;
        }
        turns->session_sent += size_bytes;
        chunks = get(stream, &slot_chunks);
        if (chunks == NULL) {
            goto end;
        }
        truth = take_body(stream, pieces, chunks, turns->frame_type, size_bytes);
        Py_DECREF(chunks);
        if (truth < 0) {
            goto end;
        }
        turns->left_bytes = add_up(turns->left_bytes, -(size_bytes + HEADER_BYTES));
    }
    truth = take_part(stream, &slot_end, pieces, &turns->left_bytes);
    if (truth > 0) {
        PyObject *stream_id = get(stream, &slot_stream_id);
        if (stream_id == NULL || PyList_Append(ended, stream_id) < 0) {
            truth = -1;
        }
        Py_XDECREF(stream_id);
    }
    done = truth < 0 ? -1 : 1;
end:
    Py_XDECREF(credit);
    return done;
}

PyObject *
take_turns(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Turns turns;
    PyObject *ready, *pieces, *ended;

    if (count != 7 || !PyList_Check(args[1]) || !PyList_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "take_turns was called with something else than it takes");
        return NULL;
    }
    ready = args[0], pieces = args[1], ended = args[2], turns.session = args[3];
    if (read_number(args[4], &turns.left_bytes) < 0 || read_number(args[5], &turns.most_bytes) < 0 ||
        read_number(args[6], &turns.frame_type) < 0 || get_number(turns.session, &slot_sent, &turns.session_sent) < 0 ||
        get_number(turns.session, &slot_limit, &turns.session_limit) < 0) {
        return NULL;
    }
    while (turns.left_bytes > 0) {
        Py_ssize_t waiting = PyObject_Length(ready);
        PyObject *stream;
        int taken;
        if (waiting <= 0) {
            if (waiting < 0) {
                return NULL;
            }
            break;
        }
        stream = PySequence_GetItem(ready, 0);
        if (stream == NULL) {
            return NULL;
        }
        taken = take_turn(&turns, ready, stream, pieces, ended);
        Py_DECREF(stream);
        if (taken < 0) {
            return NULL;
        }
        if (taken == 0) {
            break;
        }
    }
    return PyLong_FromLongLong(turns.left_bytes);
}

int
prepare_out(PyObject *module)
{
    struct {
        PyObject **name;
        const char *text;
    } names[] = {
        {&name_append, "append"},
        {&name_clear, "clear"},
        {&name_closed, "closed"},
        {&name_popleft, "popleft"},
        {&name_wake, "wake"},
        {&slot_chunks.name, "chunks"},
        {&slot_credit.name, "credit"},
        {&slot_end.name, "end"},
        {&slot_head.name, "head"},
        {&slot_interactive.name, "interactive"},
        {&slot_limit.name, "limit"},
        {&slot_local.name, "local"},
        {&slot_out.name, "out"},
        {&slot_peer.name, "peer"},
        {&slot_pending_bytes.name, "pending_bytes"},
        {&slot_queued.name, "queued"},
        {&slot_sent.name, "sent"},
        {&slot_stream_id.name, "stream_id"},
        {&slot_waiting.name, "waiting"},
    };
    size_t at;

    for (at = 0; at < sizeof(names) / sizeof(names[0]); at++) {
        *names[at].name = PyUnicode_InternFromString(names[at].text);
        if (*names[at].name == NULL) {
            return -1;
        }
    }
    return PyModule_AddType(module, &OutPathType) < 0 || PyModule_AddType(module, &ChunkReaderType) < 0 ? -1 : 0;
}
