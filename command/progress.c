/* A progress bar: see progress.h. */
#include "command/progress.h"

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

enum { BAR = 30, LINE = 79 };

static bool on_terminal(void) {
  return isatty(STDERR_FILENO) == 1;
}

void progress_show(int done, int total, const char *text) {
  if (!on_terminal())
    return;
  int filled = total > 0 ? done * BAR / total : BAR;
  fprintf(stderr, "\r[");
  for (int i = 0; i < BAR; i++)
    fputc(i < filled ? '#' : '.', stderr);
  fprintf(stderr, "] %d/%d  %-36.36s", done, total, text);
  fflush(stderr);
}

void progress_end(void) {
  if (on_terminal())
    fprintf(stderr, "\r%*s\r", LINE, "");
}
