/* Launches an MPI function many times in a row, and whatever belongs to a launch with it.
 *
 * No MPI header is needed, so this serves every MPI: a function comes as its address, and its arguments as words
 * as wide as a pointer. By the System V ABI of x86-64 and the AAPCS64 of arm64 an int or a pointer takes a whole
 * register or 8 bytes of the stack, and a callee ignores what is above an int; so Open MPI's handles (pointers)
 * and MPICH's (ints) travel alike. Apple's arm64 packs what goes on the stack: there 8 arguments are the most.
 */
#include <stdint.h>
#include <string.h>

#define MOST_ARGUMENTS 12

typedef intptr_t word;

struct step {
    word function;
    word count;
    word arguments[MOST_ARGUMENTS];
};

#define FUNCTION(...) ((int (*)(__VA_ARGS__))step->function)

static inline int call(const struct step *step) {
    const word *a = step->arguments;
    switch (step->count) {
    case 1:
        return FUNCTION(word)(a[0]);
    case 3:
        return FUNCTION(word, word, word)(a[0], a[1], a[2]);
    case 5:
        return FUNCTION(word, word, word, word, word)(a[0], a[1], a[2], a[3], a[4]);
    case 6:
        return FUNCTION(word, word, word, word, word, word)(a[0], a[1], a[2], a[3], a[4], a[5]);
    case 7:
        return FUNCTION(word, word, word, word, word, word, word)(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
    case 8:
        return FUNCTION(word, word, word, word, word, word, word, word)(
            a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
    case 9:
        return FUNCTION(word, word, word, word, word, word, word, word, word)(
            a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8]);
    case 12:
        return FUNCTION(word, word, word, word, word, word, word, word, word, word, word, word)(
            a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
    }
    return -1;
}

/* All steps, so many times in a row; the first code that is not 0 (MPI_SUCCESS) ends it and is returned. */
int ccbench_launch(const struct step *steps, word count, word times) {
    for (; times > 0; times--)
        for (word one = 0; one < count; one++) {
            int code = call(steps + one);
            if (code) return code;
        }
    return 0;
}

/* A step of its own: what the root of a broadcast does, as elsewhere data come from another buffer. */
int ccbench_copy(word target, word source, word bytes) {
    memcpy((void *)target, (const void *)source, (size_t)bytes);
    return 0;
}
