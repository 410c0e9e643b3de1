/* rota export: kernels as files that rota_kernel_import loads where no NVRTC is. */
#include <stdio.h>
#include <stdlib.h>

#include "command/commands.h"
#include "command/model.h"

static rota_status export_direction(const Options *options, Model *model, rota_direction direction,
                                    void *opaque) {
  (void)opaque;
  rota_context *context = NULL;
  rota_spec *spec = NULL;
  rota_kernel *kernel = NULL;
  char path[4096];
  int length =
      snprintf(path, sizeof path, "%s.%s.rota", options->output, direction_name(direction));
  if (length >= (int)sizeof path)
    return status_fail(ROTA_INVALID_ARGUMENT, "--output: the path is too long");
  rota_kernel_request request = {.direction = direction,
                                 .device = options->device,
                                 .device_ordinal = options->ordinal,
                                 .layout = options->layout,
                                 .architecture = options->architecture};
  rota_status status = rota_context_create(NULL, &context);
  if (status == ROTA_OK)
    status = rota_spec_create_from_script(context, model->text, model->name, &spec);
  if (status == ROTA_OK)
    status = rota_kernel_prepare(context, spec, &request, &kernel);
  if (status == ROTA_OK)
    status = rota_kernel_export(kernel, path);
  if (status == ROTA_OK)
    printf("%s\n", path);
  rota_kernel_destroy(kernel);
  rota_spec_destroy(spec);
  rota_context_destroy(context);
  return status;
}

int command_export(int count, char **arguments) {
  Options options;
  options_parse(count, arguments, OPTIONS_MODEL | OPTIONS_TARGET | OPTIONS_OUTPUT, "MODEL.lua",
                "Writes the model's compiled kernels to NAME.forward.rota and NAME.backward.rota "
                "(NAME from --output, default: kernel).",
                &options);
  if (!options.output)
    options.output = "kernel";
  Model model;
  rota_status status = model_open(&options, &model);
  if (status == ROTA_OK)
    status = model_each_direction(&options, &model, export_direction, NULL);
  model_close(&model);
  return status == ROTA_OK ? EXIT_SUCCESS : command_fail("export");
}
