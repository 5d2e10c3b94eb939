/* What the library is, and what the CPU it runs on can do. */

#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

/* Raise it in library.py too when an argument of any kernel changes: it tells
 * an old build from one that fits the Python sources. */
#define MMSSM_ABI 1

EXPORT int32_t mmssm_abi(void) { return MMSSM_ABI; }

/* Whether kernels were compiled with OpenMP (they run on one thread else). */
EXPORT int32_t mmssm_openmp(void) {
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}

/* Number of instruction sets of library.py's list, from the first one on,
 * that both this build and this CPU (and its operating system) have. */
EXPORT int32_t mmssm_isa_count(void) {
    int32_t count = 1;
#ifdef MMSSM_WITH_AVX2
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return count;
    count++;
#endif
#ifdef MMSSM_WITH_AVX512
    if (!__builtin_cpu_supports("avx512f") ||
        !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512bw"))
        return count;
    count++;
#endif
    return count;
}
