/* Native twin of read_path.py. Nothing here decides: bytes and counters only. */

#include "_native.h"
#include <errno.h>
#ifdef __linux__
#include <sys/epoll.h>
#include <sys/socket.h>

#define READ_BYTES (256 * 1024) /* as in read_path.py */
#define MOST_EVENTS 256

static char read_bytes[READ_BYTES]; /* used while the interpreter is held */

/* What was read of a socket: 1 with bytes or None in *data, 0: nothing was there, -1: an error. */
static int
read_socket(int descriptor, uint32_t events, PyObject **data)
{
    ssize_t size = 0;

    if (events == EPOLLIN) {
        size = recv(descriptor, read_bytes, READ_BYTES, MSG_DONTWAIT);
        if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
            return 0;
        }
    }
    *data = size > 0 ? PyBytes_FromStringAndSize(read_bytes, size) : Py_NewRef(Py_None);
    return *data == NULL ? -1 : 1;
}

PyObject *
read_ready(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    struct epoll_event events[MOST_EVENTS];
    PyObject *found, *members;
    long most_events;
    long long most_bytes, size_bytes = 0;
    int poll, ready, at;

    if (count != 4 || !PyDict_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "read_ready takes an epoll, a dictionary and two numbers");
        return NULL;
    }
    members = args[1];
    most_events = PyLong_AsLong(args[2]);
    if (most_events == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (read_number(args[3], &most_bytes) < 0) {
        return NULL;
    }
    if (most_events < 1 || most_events > MOST_EVENTS) {
        PyErr_Format(PyExc_ValueError, "from 1 to %d sockets are read at once", MOST_EVENTS);
        return NULL;
    }
    poll = PyObject_AsFileDescriptor(args[0]); /* the last that may call back before it is used */
    if (poll < 0) {
        return NULL;
    }
    ready = epoll_wait(poll, events, (int)most_events, 0);
    if (ready < 0 && errno != EINTR) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    found = PyList_New(0);
    for (at = 0; found != NULL && at < ready && size_bytes < most_bytes; at++) {
        PyObject *key = PyLong_FromLong(events[at].data.fd), *member, *data = NULL, *pair = NULL;
        int taken = -1;
        if (key != NULL) {
            member = Py_XNewRef(PyDict_GetItemWithError(members, key)); /* a new object may set off the collector */
            Py_DECREF(key);
            if (member == NULL || member == Py_None) {
                taken = PyErr_Occurred() ? -1 : 0;
            } else {
                taken = read_socket(events[at].data.fd, events[at].events, &data);
                if (taken == 1) {
                    size_bytes += data == Py_None ? 0 : PyBytes_GET_SIZE(data);
                    pair = PyTuple_Pack(2, member, data);
                    if (pair == NULL || PyList_Append(found, pair) < 0) {
                        taken = -1;
                    }
                }
            }
            Py_XDECREF(member);
        }
        Py_XDECREF(data);
        Py_XDECREF(pair);
        if (taken < 0) {
            Py_CLEAR(found);
        }
    }
    return found == NULL ? NULL : Py_BuildValue("(NnL)", found, PyList_GET_SIZE(found), size_bytes);
}
#else
PyObject *
read_ready(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    PyErr_SetString(PyExc_NotImplementedError, "this system has no epoll");
    return NULL;
}
#endif
