/* A progress bar on standard error: one line that is rewritten on a terminal, nothing elsewhere. */
#ifndef ROTA_COMMAND_PROGRESS_H
#define ROTA_COMMAND_PROGRESS_H

/* `done` of `total` steps; `text` says what is being done. */
void progress_show(int done, int total, const char *text);
/* Clears the line. */
void progress_end(void);

#endif
