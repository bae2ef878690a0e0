// Where each CPython has what the walker reads: written by native/build.py from src/vram/cpython_layouts.py.
// clang-format off
static const struct layout known_layouts[] = {
    {.minor=9, .finalizing=16, .thread_id=176, .frame=24, .previous=24, .code=32, .running=104, .first_line=40,
     .file=104, .name=112, .lines=120, .code_size=176, .ascii_size=48, .text_size=72},
    {.minor=10, .finalizing=16, .thread_id=176, .frame=24, .previous=24, .code=32, .running=96, .first_line=40,
     .file=104, .name=112, .lines=120, .code_size=176, .ascii_size=48, .text_size=72},
    {.minor=11, .finalizing=24, .thread_id=152, .frame=56, .current=8, .previous=48, .code=32, .running=56, .owner=69,
     .first_line=72, .file=112, .name=120, .qualified=128, .lines=136, .traceable=168, .bytecode=184, .code_size=184,
     .ascii_size=48, .text_size=72},
    {.minor=12, .finalizing=24, .thread_id=136, .frame=56, .current=0, .previous=8, .code=0, .running=56, .owner=70,
     .first_line=68, .file=112, .name=120, .qualified=128, .lines=136, .version=92, .traceable=176, .bytecode=192,
     .code_size=192, .ascii_size=40, .text_size=56},
};

// Where _Py_DebugOffsets, at the start of _PyRuntime, has the offsets, in bytes from its start.
struct published {
    int minor;
    uint16_t runtime_size, finalizing, thread_size, current_frame, thread_id, frame_size, previous, executable,
     instruction, owner, code_size, file, name, qualified, lines, first_line, variables, bytecode, type, bytes_length,
     bytes_data, text_state, text_length, ascii_size, head, interpreter_size, interpreter_id, next, main_thread,
     interpreter, native_id, eval_breaker, support, enabled, pending_call, script_path, script_path_size;
};
static const struct published published_tables[] = {
    {.minor=13, .runtime_size=24, .finalizing=32, .thread_size=152, .current_frame=184, .thread_id=192,
     .frame_size=224, .previous=232, .executable=240, .instruction=248, .owner=264, .code_size=272, .file=280,
     .name=288, .qualified=296, .lines=304, .first_line=312, .variables=328, .bytecode=344, .type=360,
     .bytes_length=520, .bytes_data=528, .text_state=544, .text_length=552, .ascii_size=560},
    {.minor=14, .runtime_size=24, .finalizing=32, .thread_size=176, .current_frame=208, .thread_id=216,
     .frame_size=248, .previous=256, .executable=264, .instruction=272, .owner=288, .code_size=312, .file=320,
     .name=328, .qualified=336, .lines=344, .first_line=352, .variables=368, .bytecode=384, .type=408,
     .bytes_length=600, .bytes_data=608, .text_state=624, .text_length=632, .ascii_size=640, .head=40,
     .interpreter_size=48, .interpreter_id=56, .next=64, .main_thread=80, .interpreter=200, .native_id=224,
     .eval_breaker=712, .support=720, .enabled=728, .pending_call=736, .script_path=744, .script_path_size=752},
};
// clang-format on
