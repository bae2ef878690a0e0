// Compares the offsets of native/tracer/python_stack.c with the headers of the Python that this is compiled for.
// Prints a line for each difference and exits with their number.
#define Py_BUILD_CORE 1
#include <Python.h>

#include <frameobject.h>
#include <stddef.h>
#if PY_VERSION_HEX >= 0x030B0000
#include "internal/pycore_code.h"
#include "internal/pycore_frame.h"
#endif
#include "internal/pycore_runtime.h"
#if PY_VERSION_HEX >= 0x030E0000
#include "internal/pycore_debug_offsets.h"
#include "internal/pycore_interpframe_structs.h"
#endif

#include "../../native/tracer/python_stack.c"

static int differences;

static void compare(const char *name, size_t ours, size_t theirs) {
    if (ours == theirs) return;
    printf("%d.%d %s: %zu, in the headers %zu\n", PY_MAJOR_VERSION, PY_MINOR_VERSION, name, ours, theirs);
    differences++;
}

#define SAME(field, structure, member) compare(#field, row->field, offsetof(structure, member))

int main(void) {
#if PY_VERSION_HEX < 0x030D0000
    const struct layout *row = NULL;
    for (size_t each = 0; each < sizeof known_layouts / sizeof *known_layouts; each++)
        if (known_layouts[each].minor == PY_MINOR_VERSION) row = &known_layouts[each];
    if (!row) return 100;
    SAME(finalizing, _PyRuntimeState, _finalizing);
    SAME(thread_id, PyThreadState, thread_id);
    SAME(first_line, PyCodeObject, co_firstlineno);
    SAME(file, PyCodeObject, co_filename);
    SAME(name, PyCodeObject, co_name);
#if PY_VERSION_HEX >= 0x030B0000
    SAME(qualified, PyCodeObject, co_qualname);
#else
    compare("qualified", row->qualified, 0);
#endif
    compare("ascii_size", row->ascii_size, sizeof(PyASCIIObject));
    compare("text_size", row->text_size, sizeof(PyCompactUnicodeObject));
#if PY_VERSION_HEX < 0x030B0000
    SAME(frame, PyThreadState, frame);
    SAME(previous, PyFrameObject, f_back);
    SAME(code, PyFrameObject, f_code);
    SAME(running, PyFrameObject, f_lasti);
    compare("code_size", row->code_size, sizeof(PyCodeObject));
#if PY_VERSION_HEX < 0x030A0000
    SAME(lines, PyCodeObject, co_lnotab);
#else
    SAME(lines, PyCodeObject, co_linetable);
#endif
#else
    SAME(frame, PyThreadState, cframe);
    SAME(current, _PyCFrame, current_frame);
    SAME(previous, _PyInterpreterFrame, previous);
    SAME(code, _PyInterpreterFrame, f_code);
    SAME(running, _PyInterpreterFrame, prev_instr);
    SAME(owner, _PyInterpreterFrame, owner);
    SAME(lines, PyCodeObject, co_linetable);
    SAME(traceable, PyCodeObject, _co_firsttraceable);
    SAME(bytecode, PyCodeObject, co_code_adaptive);
    SAME(code_size, PyCodeObject, co_code_adaptive);
#if PY_VERSION_HEX >= 0x030C0000
    SAME(version, PyCodeObject, co_version);
#endif
#endif
#else
    const struct published *row = NULL;
    for (size_t each = 0; each < sizeof published_tables / sizeof *published_tables; each++)
        if (published_tables[each].minor == PY_MINOR_VERSION) row = &published_tables[each];
    if (!row) return 100;
    SAME(runtime_size, _Py_DebugOffsets, runtime_state.size);
    SAME(finalizing, _Py_DebugOffsets, runtime_state.finalizing);
    SAME(thread_size, _Py_DebugOffsets, thread_state.size);
    SAME(current_frame, _Py_DebugOffsets, thread_state.current_frame);
    SAME(thread_id, _Py_DebugOffsets, thread_state.thread_id);
    SAME(frame_size, _Py_DebugOffsets, interpreter_frame.size);
    SAME(previous, _Py_DebugOffsets, interpreter_frame.previous);
    SAME(executable, _Py_DebugOffsets, interpreter_frame.executable);
    SAME(instruction, _Py_DebugOffsets, interpreter_frame.instr_ptr);
    SAME(owner, _Py_DebugOffsets, interpreter_frame.owner);
    SAME(code_size, _Py_DebugOffsets, code_object.size);
    SAME(file, _Py_DebugOffsets, code_object.filename);
    SAME(name, _Py_DebugOffsets, code_object.name);
    SAME(qualified, _Py_DebugOffsets, code_object.qualname);
    SAME(lines, _Py_DebugOffsets, code_object.linetable);
    SAME(first_line, _Py_DebugOffsets, code_object.firstlineno);
    SAME(variables, _Py_DebugOffsets, code_object.localsplusnames);
    SAME(bytecode, _Py_DebugOffsets, code_object.co_code_adaptive);
    SAME(type, _Py_DebugOffsets, pyobject.ob_type);
    SAME(bytes_length, _Py_DebugOffsets, bytes_object.ob_size);
    SAME(bytes_data, _Py_DebugOffsets, bytes_object.ob_sval);
    SAME(text_state, _Py_DebugOffsets, unicode_object.state);
    SAME(text_length, _Py_DebugOffsets, unicode_object.length);
    SAME(ascii_size, _Py_DebugOffsets, unicode_object.asciiobject_size);
    compare("version", offsetof(PyCodeObject, co_localsplusnames) - 4, offsetof(PyCodeObject, co_version));
    compare("traceable", offsetof(PyCodeObject, co_code_adaptive) - 16, offsetof(PyCodeObject, _co_firsttraceable));
    compare("text_size", sizeof(PyASCIIObject) + 16, sizeof(PyCompactUnicodeObject));
#endif
    compare("object type", OBJECT_TYPE, offsetof(PyObject, ob_type));
    compare("type name", TYPE_NAME, offsetof(PyTypeObject, tp_name));
    compare("type size", TYPE_BASIC_SIZE, offsetof(PyTypeObject, tp_basicsize));
    compare("bytes length", BYTES_LENGTH, offsetof(PyVarObject, ob_size));
    compare("bytes data", BYTES_DATA, offsetof(PyBytesObject, ob_sval));
    compare("text length", TEXT_LENGTH, offsetof(PyASCIIObject, length));
    compare("text hash", TEXT_HASH, offsetof(PyASCIIObject, hash));
    compare("text state", TEXT_STATE, offsetof(PyASCIIObject, state));
    return differences;
}
