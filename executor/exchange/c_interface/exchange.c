/* Calls executor.exchange.c_interface.calls in an interpreter of its own. PYTHON is set where it is compiled: the
 * interpreter whose packages are used. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "exchange.h"

static PyObject *calls = NULL;

/* Start Python once; afterwards no thread holds its lock, so that the exchange's own thread can run. */
static int start(void) {
    if (Py_IsInitialized()) return 0;
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    PyStatus status = PyConfig_SetBytesString(&config, &config.program_name, PYTHON);
    if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    if (PyStatus_Exception(status)) {
        fprintf(stderr, "exchange: Python does not start: %s\n", status.err_msg ? status.err_msg : "no reason given");
        return -1;
    }
    PyEval_SaveThread();
    return 0;
}

static int finish(PyObject *result) {
    int code = -1;
    if (result == NULL) {
        PyErr_Print();
    } else {
        code = (int)PyLong_AsLong(result);
        Py_DECREF(result);
    }
    return code;
}

static int call(const char *name) {
    if (start() != 0) return -1;
    PyGILState_STATE state = PyGILState_Ensure();
    if (calls == NULL) calls = PyImport_ImportModule("executor.exchange.c_interface.calls");
    int code = finish(calls == NULL ? NULL : PyObject_CallMethod(calls, name, NULL));
    PyGILState_Release(state);
    return code;
}

static int call_on(const char *what, const char *name, float *values, size_t count, int last) {
    if (calls == NULL) {
        fprintf(stderr, "exchange: call exchange_init() first\n");
        return -1;
    }
    PyGILState_STATE state = PyGILState_Ensure();
    int code = finish(PyObject_CallMethod(
        calls, what, "sKni", name, (unsigned long long)(size_t)values, (Py_ssize_t)count, last));
    PyGILState_Release(state);
    return code;
}

int exchange_init(void) { return call("init"); }
int exchange_shutdown(void) { return call("shutdown"); }
int exchange_rank(void) { return call("rank"); }
int exchange_size(void) { return call("size"); }
int exchange_local_rank(void) { return call("local_rank"); }
int exchange_local_size(void) { return call("local_size"); }

int exchange_all_reduce(const char *name, float *values, size_t count, int mean) {
    return call_on("all_reduce", name, values, count, mean);
}

int exchange_broadcast(const char *name, float *values, size_t count, int root) {
    return call_on("broadcast", name, values, count, root);
}
