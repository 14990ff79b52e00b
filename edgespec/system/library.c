/* The module around precompiled functions: finds them by name, calls kernels with Python's
   arguments, and says what this processor can do.

   A kernel takes the address of 64-bit words: room for its results, then its arguments, an array
   as its address and lengths (see `numba_compiler.py`). The module needs nothing of the C library
   by itself, and of Python its stable interface only. */

#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

typedef struct {
    const char *name;
    void (*code)(void);
} Function;

extern const Function edgespec_functions[];
extern const long edgespec_num_functions;
extern const char edgespec_source_hash[];

/* The beginning of an array, which is part of NumPy's stable interface. */
typedef struct {
    PyObject_HEAD
    char *data;
    int num_axes;
    Py_ssize_t *lengths;
    Py_ssize_t *strides;
    PyObject *base;
    PyObject *dtype;
    int flags;
} Array;

enum { CONTIGUOUS = 1, MOST_WORDS = 128 };

static PyTypeObject *array_type;
static PyObject *dtypes[128];

typedef struct {
    const char *name;
    void (*code)(int64_t *);
    int num_results;
    const char *letters;
} Kernel;

static const char KERNEL[] = "edgespec.kernel";

static void *find(const char *name) {
    long low = 0, high = edgespec_num_functions;
    while (low < high) {
        long middle = (low + high) / 2;
        const char *other = edgespec_functions[middle].name;
        const char *place = name;
        while (*place && *place == *other) {
            place++;
            other++;
        }
        if (*place == *other) return (void *)edgespec_functions[middle].code;
        if ((unsigned char)*place < (unsigned char)*other) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

/* Put one argument into words; returns where the next go, NULL with an exception. */
static int64_t *fill(const char **letters, PyObject *value, int64_t *words, int64_t *end) {
    char kind = *(*letters)++;
    if (words + 5 > end) {
        PyErr_SetString(PyExc_TypeError, "too many arguments");
        return NULL;
    }
    if (kind == '(') {
        if (!PyTuple_Check(value)) {
            PyErr_SetString(PyExc_TypeError, "a tuple is needed");
            return NULL;
        }
        Py_ssize_t size = PyTuple_Size(value);
        for (Py_ssize_t i = 0; i < size && words && **letters != ')'; i++)
            words = fill(letters, PyTuple_GetItem(value, i), words, end);
        if (words && *(*letters)++ != ')') {
            PyErr_SetString(PyExc_TypeError, "a tuple of another length is needed");
            return NULL;
        }
        return words;
    }
    if (kind >= '1' && kind <= '4') {
        PyObject *dtype = dtypes[(int)*(*letters)++];
        Array *array = (Array *)value;
        if (!PyObject_TypeCheck(value, array_type)) {
            PyErr_SetString(PyExc_TypeError, "an array is needed");
            return NULL;
        }
        int same = array->dtype == dtype;
        if (!same && (same = PyObject_RichCompareBool(array->dtype, dtype, Py_EQ)) < 0) return NULL;
        if (!same || array->num_axes != kind - '0' || !(array->flags & CONTIGUOUS)) {
            PyErr_Format(PyExc_TypeError, "an array of %S without gaps, with %c axes, is needed",
                         dtype, kind);
            return NULL;
        }
        *words++ = (int64_t)(intptr_t)array->data;
        for (int axis = 0; axis < array->num_axes; axis++) *words++ = array->lengths[axis];
        return words;
    }
    double number = 0.0;
    float single;
    int truth;
    PyObject *whole;
    switch (kind) {
    case 'l':
        *words = PyLong_AsLongLong(value);
        break;
    case 'L':
        whole = PyNumber_Index(value);
        if (!whole) return NULL;
        *words = (int64_t)PyLong_AsUnsignedLongLong(whole);
        Py_DecRef(whole);
        break;
    case 'd':
        number = PyFloat_AsDouble(value);
        __builtin_memcpy(words, &number, 8);
        break;
    case 'f':
        single = (float)PyFloat_AsDouble(value);
        *words = 0;
        __builtin_memcpy(words, &single, 4);
        break;
    case '?':
        truth = PyObject_IsTrue(value);
        if (truth < 0) return NULL;
        *words = truth;
        return words + 1;
    default:
        PyErr_SetString(PyExc_TypeError, "more arguments than the kernel takes");
        return NULL;
    }
    if ((*words == -1 || number == -1.0 || kind == 'f') && PyErr_Occurred()) return NULL;
    return words + 1;
}

static PyObject *result_of(char kind, const int64_t *word) {
    double number;
    switch (kind) {
    case 'd':
        __builtin_memcpy(&number, word, 8);
        return PyFloat_FromDouble(number);
    case 'L':
        return PyLong_FromUnsignedLongLong((uint64_t)*word);
    case '?':
        return PyBool_FromLong(*word != 0);
    default:
        return PyLong_FromLongLong(*word);
    }
}

static PyObject *call(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    Kernel *kernel = PyCapsule_GetPointer(self, KERNEL);
    if (!kernel) return NULL;
    int64_t words[MOST_WORDS], *place = words + kernel->num_results;
    const char *letters = kernel->letters;
    for (Py_ssize_t i = 0; i < count; i++) {
        place = fill(&letters, arguments[i], place, words + MOST_WORDS);
        if (!place) return NULL;
    }
    if (*letters++ != '>') {
        PyErr_Format(PyExc_TypeError, "%s takes more arguments", kernel->name);
        return NULL;
    }
    PyThreadState *state = PyEval_SaveThread();
    kernel->code(words);
    PyEval_RestoreThread(state);
    if (kernel->num_results == 0) {
        Py_IncRef(Py_None);
        return Py_None;
    }
    if (kernel->num_results == 1) return result_of(*letters, words);
    PyObject *results = PyTuple_New(kernel->num_results);
    for (int i = 0; results && i < kernel->num_results; i++) {
        PyObject *result = result_of(letters[i], words + i);
        if (!result || PyTuple_SetItem(results, i, result) < 0) {
            Py_DecRef(results);
            return NULL;
        }
    }
    return results;
}

static PyMethodDef call_method = {"kernel", (PyCFunction)(void (*)(void))call, METH_FASTCALL, NULL};

/* (name, address, letters) -> callable; as kernels are functions of modules, it stays for good. */
static PyObject *make_kernel(PyObject *self, PyObject *arguments) {
    const char *name, *letters;
    long long address;
    if (!PyArg_ParseTuple(arguments, "sLs", &name, &address, &letters)) return NULL;
    Kernel *kernel = PyMem_Malloc(sizeof(Kernel));
    if (!kernel) return PyErr_NoMemory();
    kernel->code = (void (*)(int64_t *))(intptr_t)address;
    const char *results = letters;
    while (*results++ != '>') {
    }
    kernel->num_results = 0;
    while (results[kernel->num_results]) kernel->num_results++;
    Py_IncRef(arguments); /* which holds both texts */
    kernel->name = name;
    kernel->letters = letters;
    PyObject *capsule = PyCapsule_New(kernel, KERNEL, NULL);
    if (!capsule) return NULL;
    PyObject *made = PyCFunction_NewEx(&call_method, capsule, NULL);
    Py_DecRef(capsule);
    return made;
}

static PyObject *find_function(PyObject *self, PyObject *arguments) {
    const char *name;
    if (!PyArg_ParseTuple(arguments, "s", &name)) return NULL;
    return PyLong_FromLongLong((long long)(intptr_t)find(name));
}

static PyObject *names(PyObject *self, PyObject *unused) {
    PyObject *list = PyList_New(0);
    for (long i = 0; list && i < edgespec_num_functions; i++) {
        PyObject *name = PyUnicode_FromString(edgespec_functions[i].name);
        if (!name || PyList_Append(list, name) < 0) return NULL;
        Py_DecRef(name);
    }
    return list;
}

/* (ndarray, {letter: dtype}): what arrays are checked against. */
static PyObject *prepare(PyObject *self, PyObject *arguments) {
    PyObject *type, *kinds;
    if (!PyArg_ParseTuple(arguments, "OO", &type, &kinds)) return NULL;
    for (int letter = 0; letter < 128; letter++) {
        PyObject *key = PyLong_FromLong(letter);
        PyObject *dtype = key ? PyDict_GetItemWithError(kinds, key) : NULL;
        if (key) Py_DecRef(key);
        if (dtype) Py_IncRef(dtype);
        dtypes[letter] = dtype;
    }
    Py_IncRef(type);
    array_type = (PyTypeObject *)type;
    Py_IncRef(Py_None);
    return Py_None;
}

static PyObject *source_hash(PyObject *self, PyObject *unused) {
    return PyUnicode_FromString(edgespec_source_hash);
}

#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>
static const char MACHINE[] = "x86_64";

/* Bits of cpuid: leaf, subleaf, register, bit; and what of its registers the system must save. */
static const struct {
    const char *name;
    unsigned leaf, subleaf, place, bit, saved;
} FEATURES[] = {
    {"fma", 1, 0, 2, 12, 6},      {"f16c", 1, 0, 2, 29, 6},      {"avx2", 7, 0, 1, 5, 6},
    {"bmi", 7, 0, 1, 3, 0},       {"bmi2", 7, 0, 1, 8, 0},       {"lzcnt", 0x80000001, 0, 2, 5, 0},
    {"movbe", 1, 0, 2, 22, 0},    {"avxvnni", 7, 1, 0, 4, 6},    {"avx512f", 7, 0, 1, 16, 0xe6},
    {"avx512bw", 7, 0, 1, 30, 0xe6}, {"avx512dq", 7, 0, 1, 17, 0xe6},
    {"avx512cd", 7, 0, 1, 28, 0xe6}, {"avx512vl", 7, 0, 1, 31, 0xe6},
    {"avx512vnni", 7, 0, 2, 11, 0xe6},
};

static PyObject *features(PyObject *self, PyObject *unused) {
    unsigned found[4], saved = 0, upper;
    PyObject *list = PyList_New(0);
    if (list && __get_cpuid(1, &found[0], &found[1], &found[2], &found[3]) && found[2] >> 27 & 1)
        __asm__("xgetbv" : "=a"(saved), "=d"(upper) : "c"(0));
    for (unsigned i = 0; list && i < sizeof FEATURES / sizeof *FEATURES; i++) {
        if (!__get_cpuid_count(FEATURES[i].leaf, FEATURES[i].subleaf, &found[0], &found[1],
                               &found[2], &found[3]))
            continue;
        if (!(found[FEATURES[i].place] >> FEATURES[i].bit & 1) ||
            (saved & FEATURES[i].saved) != FEATURES[i].saved)
            continue;
        PyObject *name = PyUnicode_FromString(FEATURES[i].name);
        if (!name || PyList_Append(list, name) < 0) return NULL;
        Py_DecRef(name);
    }
    return list;
}
#else
static const char MACHINE[] = "arm64";

static PyObject *features(PyObject *self, PyObject *unused) {
    return PyList_New(0); /* the system is asked in another way */
}
#endif

static PyObject *machine(PyObject *self, PyObject *unused) {
    return PyUnicode_FromString(MACHINE);
}

static PyMethodDef METHODS[] = {
    {"find", find_function, METH_VARARGS, "The address of the function of this name, or 0."},
    {"names", names, METH_NOARGS, "The names of all functions."},
    {"kernel", make_kernel, METH_VARARGS, "A callable of a name, an address and types."},
    {"prepare", prepare, METH_VARARGS, "Tell which types arrays are of."},
    {"source_hash", source_hash, METH_NOARGS, "The hash of the sources this was made from."},
    {"features", features, METH_NOARGS, "What this processor can do, by LLVM's names."},
    {"machine", machine, METH_NOARGS, "What kind of processor this was made for."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_kernels", "Functions compiled when the package was built.", -1, METHODS,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernels(void) {
    return PyModule_Create(&MODULE);
}
