/* Native twins of pure functions of this package. Each does what the function of its name in Python does, input by
   input; the Python ones are the reference and run where this was not built. Nothing here decides: bytes and
   counters only. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
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

static PyMethodDef methods[] = {
    {"cut_messages", (PyCFunction)(void (*)(void))cut_messages, METH_FASTCALL, cut_messages_doc},
    {"frame_messages", (PyCFunction)(void (*)(void))frame_messages, METH_FASTCALL, frame_messages_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "shared.speedups._native",
    "Native twins of the functions of shared.speedups.",
    0,
    methods,
    NULL,
    NULL,
    NULL,
    NULL,
};

PyMODINIT_FUNC
PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
