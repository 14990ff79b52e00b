/* Makes the calls in a file (see calls.py) and writes the memory after them.
   The file: sizes of memory and of the list of calls; calls of 14 words: which function, a bit for
   each argument that is a place in memory, 12 arguments; the memory. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void (*function)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                         int64_t, int64_t, int64_t, int64_t);
extern function functions[];

int main(int count, char **names) {
    FILE *in = fopen(names[1], "rb"), *out = fopen(names[2], "wb");
    int64_t sizes[2];
    if (count != 3 || !in || !out || fread(sizes, 8, 2, in) != 2) return 1;
    int64_t(*calls)[14] = malloc(sizes[1] * sizeof *calls);
    char *memory = aligned_alloc(64, sizes[0]);
    if (fread(calls, sizeof *calls, sizes[1], in) != (size_t)sizes[1]) return 2;
    if (fread(memory, 1, sizes[0], in) != (size_t)sizes[0]) return 3;
    for (int64_t i = 0; i < sizes[1]; i++) {
        int64_t *a = calls[i] + 2;
        for (int k = 0; k < 12; k++)
            if (calls[i][1] >> k & 1) a[k] += (int64_t)memory;
        functions[calls[i][0]](a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10],
                               a[11]);
    }
    return fwrite(memory, 1, sizes[0], out) != (size_t)sizes[0] || fclose(out);
}
