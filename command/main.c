/* The command `rota`: dispatches to a subcommand. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "command/commands.h"
#include "rota/rota.h"

static const struct {
  const char *name, *text;
  int (*run)(int count, char **arguments);
} commands[] = {
#define X(name, text) {#name, text, command_##name},
    COMMAND_LIST(X)
#undef X
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(FILE *out) {
  fprintf(out, "Usage: rota COMMAND [OPTION...] [MODEL.lua]\n"
               "Just-in-time generator of deterministic attention kernels.\n\n");
  for (int i = 0; i < COMMANDS; i++)
    fprintf(out, "  %-9s  %s\n", commands[i].name, commands[i].text);
  fprintf(
      out,
      "\n`rota COMMAND --help` lists a command's options. A model is a Lua script, or -e CHUNK:\n"
      "  rota emit -e 'return rota.attention{head_dim = 128, mask = causal}'\n");
}

int main(int count, char **arguments) {
  const char *name = count > 1 ? arguments[1] : "";
  if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
    print_help(stdout);
    return EXIT_SUCCESS;
  }
  if (!strcmp(name, "--version") || !strcmp(name, "-V")) {
    printf("rota %s\n", rota_version());
    return EXIT_SUCCESS;
  }
  for (int i = 0; i < COMMANDS; i++)
    if (!strcmp(name, commands[i].name)) {
      int status = commands[i].run(count - 1, arguments + 1);
      if (fflush(stdout) != 0) {
        perror("rota: standard output");
        return EX_IOERR;
      }
      return status;
    }
  if (*name)
    fprintf(stderr, "rota: there is no command '%s'\n", name);
  print_help(stderr);
  return EX_USAGE;
}
