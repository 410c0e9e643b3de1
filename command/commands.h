/* The subcommands: name, what it does. Each takes argc and argv from its own name on and returns
 * the exit status. */
#ifndef ROTA_COMMAND_COMMANDS_H
#define ROTA_COMMAND_COMMANDS_H

#define COMMAND_LIST(X)                                                                            \
  X(emit, "print the generated CUDA source as one self-contained file")                            \
  X(compile, "compile the kernels: registers, spills, shared memory, size, time, cache")           \
  X(plan, "tile map and schedule of one shape, as figures or a picture")                           \
  X(io, "elements moved between fast and slow memory, by algorithm, beside the lower bound")       \
  X(run, "run attention on a file's tensors or on random ones, check and time it")                 \
  X(tune, "measure schedules and algorithms for one shape, write the fastest to a tuning file")    \
  X(calibrate, "measure what the DAG model charges, write a cost file")                            \
  X(export, "write compiled kernels to files that load where no NVRTC is")                         \
  X(cache, "list, verify or clear the cache of compiled kernels")                                  \
  X(doctor, "what was found of driver, NVRTC, GPU and cache, where, and what to do")

#define X(name, text) int command_##name(int count, char **arguments);
COMMAND_LIST(X)
#undef X

#endif
