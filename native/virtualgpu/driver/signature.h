/* From the types of a function's parameters, as functions.h lists them, to C. Parameters are numbered backwards,
 * because each macro of a family handles the first type and leaves the rest to the macro below it.
 *
 *   PARAMETERS(int, void *)         int a2, void *a1
 *   ARGUMENTS(, int, void *)        a2, a1
 *   ARGUMENTS(given., int, void *)  given.a2, given.a1
 *   FIELDS(int, void *)             int a2; void *a1;
 *   PARAMETERS()                    void
 */
#ifndef VRAM_VIRTUALGPU_SIGNATURE_H
#define VRAM_VIRTUALGPU_SIGNATURE_H

/* clang-format off */

#define PARAMETERS(...) JOIN(PARAMETERS_, COUNT(__VA_ARGS__))(__VA_ARGS__)
#define ARGUMENTS(from, ...) JOIN(ARGUMENTS_, COUNT(__VA_ARGS__))(from)
#define FIELDS(...) JOIN(FIELDS_, COUNT(__VA_ARGS__))(__VA_ARGS__)

#define COUNT(...) COUNT_(0, ##__VA_ARGS__, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define COUNT_(_0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, count, ...) count
#define JOIN(a, b) JOIN_(a, b)
#define JOIN_(a, b) a##b

#define PARAMETERS_0() void
#define PARAMETERS_1(type) type a1
#define PARAMETERS_2(type, ...) type a2, PARAMETERS_1(__VA_ARGS__)
#define PARAMETERS_3(type, ...) type a3, PARAMETERS_2(__VA_ARGS__)
#define PARAMETERS_4(type, ...) type a4, PARAMETERS_3(__VA_ARGS__)
#define PARAMETERS_5(type, ...) type a5, PARAMETERS_4(__VA_ARGS__)
#define PARAMETERS_6(type, ...) type a6, PARAMETERS_5(__VA_ARGS__)
#define PARAMETERS_7(type, ...) type a7, PARAMETERS_6(__VA_ARGS__)
#define PARAMETERS_8(type, ...) type a8, PARAMETERS_7(__VA_ARGS__)
#define PARAMETERS_9(type, ...) type a9, PARAMETERS_8(__VA_ARGS__)
#define PARAMETERS_10(type, ...) type a10, PARAMETERS_9(__VA_ARGS__)
#define PARAMETERS_11(type, ...) type a11, PARAMETERS_10(__VA_ARGS__)
#define PARAMETERS_12(type, ...) type a12, PARAMETERS_11(__VA_ARGS__)
#define PARAMETERS_13(type, ...) type a13, PARAMETERS_12(__VA_ARGS__)
#define PARAMETERS_14(type, ...) type a14, PARAMETERS_13(__VA_ARGS__)
#define PARAMETERS_15(type, ...) type a15, PARAMETERS_14(__VA_ARGS__)
#define PARAMETERS_16(type, ...) type a16, PARAMETERS_15(__VA_ARGS__)

#define ARGUMENTS_0(from)
#define ARGUMENTS_1(from) from a1
#define ARGUMENTS_2(from) from a2, ARGUMENTS_1(from)
#define ARGUMENTS_3(from) from a3, ARGUMENTS_2(from)
#define ARGUMENTS_4(from) from a4, ARGUMENTS_3(from)
#define ARGUMENTS_5(from) from a5, ARGUMENTS_4(from)
#define ARGUMENTS_6(from) from a6, ARGUMENTS_5(from)
#define ARGUMENTS_7(from) from a7, ARGUMENTS_6(from)
#define ARGUMENTS_8(from) from a8, ARGUMENTS_7(from)
#define ARGUMENTS_9(from) from a9, ARGUMENTS_8(from)
#define ARGUMENTS_10(from) from a10, ARGUMENTS_9(from)
#define ARGUMENTS_11(from) from a11, ARGUMENTS_10(from)
#define ARGUMENTS_12(from) from a12, ARGUMENTS_11(from)
#define ARGUMENTS_13(from) from a13, ARGUMENTS_12(from)
#define ARGUMENTS_14(from) from a14, ARGUMENTS_13(from)
#define ARGUMENTS_15(from) from a15, ARGUMENTS_14(from)
#define ARGUMENTS_16(from) from a16, ARGUMENTS_15(from)

#define FIELDS_0()
#define FIELDS_1(type) type a1;
#define FIELDS_2(type, ...) type a2; FIELDS_1(__VA_ARGS__)
#define FIELDS_3(type, ...) type a3; FIELDS_2(__VA_ARGS__)
#define FIELDS_4(type, ...) type a4; FIELDS_3(__VA_ARGS__)
#define FIELDS_5(type, ...) type a5; FIELDS_4(__VA_ARGS__)
#define FIELDS_6(type, ...) type a6; FIELDS_5(__VA_ARGS__)
#define FIELDS_7(type, ...) type a7; FIELDS_6(__VA_ARGS__)
#define FIELDS_8(type, ...) type a8; FIELDS_7(__VA_ARGS__)
#define FIELDS_9(type, ...) type a9; FIELDS_8(__VA_ARGS__)
#define FIELDS_10(type, ...) type a10; FIELDS_9(__VA_ARGS__)
#define FIELDS_11(type, ...) type a11; FIELDS_10(__VA_ARGS__)
#define FIELDS_12(type, ...) type a12; FIELDS_11(__VA_ARGS__)
#define FIELDS_13(type, ...) type a13; FIELDS_12(__VA_ARGS__)
#define FIELDS_14(type, ...) type a14; FIELDS_13(__VA_ARGS__)
#define FIELDS_15(type, ...) type a15; FIELDS_14(__VA_ARGS__)
#define FIELDS_16(type, ...) type a16; FIELDS_15(__VA_ARGS__)

/* clang-format on */

#endif
