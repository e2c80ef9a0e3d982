/* Exchanges pairs of names, one pair after another, and writes the number of exchanges at the start of its output. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int main(int count, char **names)
{
    char text[32];
    for (long swaps = 0;;) {
        for (int pair = 1; pair + 1 < count; pair += 2)
            swaps += !renameat2(AT_FDCWD, names[pair], AT_FDCWD, names[pair + 1], RENAME_EXCHANGE);
        if (pwrite(1, text, sprintf(text, "%ld\n", swaps), 0) < 0)
            return 1;
    }
}
