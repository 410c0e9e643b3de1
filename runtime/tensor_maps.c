/* Tensor maps: see tensor_maps.h.
 *
 *   dimension   0          1                           2       3
 *   size        head dim   rows: of the longest slot,  heads   batch, or 1 where sequences are
 *                          or of all that are packed           packed
 *   box         64         the tiling's                1       1
 *
 * With several heads in a box dimension 1 is that of heads, 2 that of rows.
 *
 * What lies beyond a size arrives as zeros: the copy engine never reads past a tensor's end, only
 * past a sequence's. */
#include "runtime/tensor_maps.h"

#include <string.h>

enum { DIMENSIONS = 4, BOX_COLUMNS = 64, STRIDE_STEP = 16 };
static const int64_t stride_limit = (int64_t)1 << 40; /* bytes */

/* One tensor, in the words of the driver. */
typedef struct Shape {
  const char *name;
  RotaTensor tensor;
  int64_t size[DIMENSIONS];
  int64_t stride[DIMENSIONS - 1]; /* elements, of dimensions 1 and up */
  const char *stride_name[DIMENSIONS - 1];
} Shape;

static void set_dimension(Shape *shape, int dimension, int64_t size, int64_t stride,
                          const char *stride_name) {
  shape->size[dimension] = size;
  shape->stride[dimension - 1] = stride;
  shape->stride_name[dimension - 1] = stride_name;
}

static Shape shape_of(const rota_plan *plan, const RotaArguments *block, const TilingMap *wanted) {
  static const struct {
    size_t offset; /* in RotaArguments */
    bool keys, values;
  } facts[] = {
#define X(name, keys, values) {offsetof(RotaArguments, name), keys, values},
      MAPPED_LIST(X)
#undef X
  };
  const Spec *spec = &plan->kernel->spec;
  Mapped mapped = wanted->tensor;
  Shape shape = {.name = mapped_name(mapped)};
  memcpy(&shape.tensor, (const char *)block + facts[mapped].offset, sizeof shape.tensor);
  Extents extents = arguments_extents(plan, facts[mapped].keys);
  shape.size[0] = facts[mapped].values ? spec->head_dim_v : spec->head_dim;
  int row = wanted->heads ? 2 : 1, head = 3 - row;
  set_dimension(&shape, row, extents.rows, shape.tensor.stride_row, "stride_row");
  set_dimension(&shape, head, extents.heads, shape.tensor.stride_head, "stride_head");
  set_dimension(&shape, 3, extents.batch, shape.tensor.stride_batch, "stride_batch");
  return shape;
}

/* No kernel reads a tensor without elements, but its map must be one: 16 bytes of the plan. */
static void describe_nothing(const rota_plan *plan, Shape *shape) {
  shape->tensor.data = (void *)(uintptr_t)plan->image;
  shape->size[0] = STRIDE_STEP / dtype_size(plan->kernel->spec.dtype);
  for (int i = 1; i < DIMENSIONS; i++)
    shape->size[i] = 1;
}

static rota_status bad_stride(const Shape *shape, int index) {
  return status_fail(ROTA_INVALID_ARGUMENT,
                     "%s.%s is %lld elements: the copy engine, by which this kernel copies, takes "
                     "none below 0 and none of 2^40 bytes; copy the tensor, or prepare the kernel "
                     "with ROTA_LAYOUT_ANY",
                     shape->name, shape->stride_name[index], (long long)shape->stride[index]);
}

/* Strides in bytes. That of a dimension with one element is never used: any legal one will do. */
static rota_status find_strides(const Shape *shape, int64_t element,
                                unsigned long long strides[DIMENSIONS - 1]) {
  for (int i = 0; i < DIMENSIONS - 1; i++) {
    int64_t bytes = STRIDE_STEP;
    if (shape->size[i + 1] > 1) {
      if (shape->stride[i] < 0 || shape->stride[i] >= stride_limit / element)
        return bad_stride(shape, i);
      bytes = shape->stride[i] * element;
    }
    strides[i] = (unsigned long long)bytes;
  }
  return ROTA_OK;
}

static rota_status fill_map(const rota_plan *plan, const RotaArguments *block,
                            const TilingMap *wanted, RotaTensorMap *map) {
  const Driver *driver = plan->kernel->module->device->driver;
  rota_dtype dtype = plan->kernel->spec.dtype;
  Shape shape = shape_of(plan, block, wanted);
  if (shape.size[1] == 0 || shape.size[2] == 0 || shape.size[3] == 0 || !shape.tensor.data)
    describe_nothing(plan, &shape);
  unsigned long long strides[DIMENSIONS - 1], sizes[DIMENSIONS];
  ROTA_TRY(find_strides(&shape, dtype_size(dtype), strides));
  for (int i = 0; i < DIMENSIONS; i++)
    sizes[i] = (unsigned long long)shape.size[i];
  const unsigned rows = (unsigned)wanted->rows, heads = (unsigned)wanted->heads;
  const unsigned box[DIMENSIONS] = {BOX_COLUMNS, heads ? heads : rows, heads ? rows : 1, 1};
  const unsigned every[DIMENSIONS] = {1, 1, 1, 1};
  CUresult result = driver->tensor_map_encode(
      map, dtype == ROTA_BF16 ? TENSOR_MAP_BFLOAT16 : TENSOR_MAP_FLOAT16, DIMENSIONS,
      shape.tensor.data, sizes, strides, box, every, TENSOR_MAP_INTERLEAVE_NONE,
      TENSOR_MAP_SWIZZLE_128B, TENSOR_MAP_PROMOTION_256B, TENSOR_MAP_FILL_ZEROS);
  return driver_check(driver, result, "tensor_map_encode", shape.name);
}

rota_status tensor_maps_fill(const rota_plan *plan, const RotaArguments *block,
                             RotaTensorMaps *maps) {
  _Static_assert(TILING_MAPS_MAX == ROTA_ABI_MAPS, "the generator's limit is the kernels' limit");
  const Tiling *tiling = &plan->kernel->tiling;
  const Device *device = plan->kernel->module->device;
  if (tiling->map_count && !device->driver->tensor_map_encode)
    return status_fail(ROTA_UNSUPPORTED,
                       "the kernel copies by tensor maps, which the driver of device %d (CUDA "
                       "%d.%d) does not make: CUDA 12.0 or newer does, and a kernel prepared here "
                       "does without",
                       device->ordinal, device->driver->version / 1000,
                       device->driver->version % 1000 / 10);
  for (int i = 0; i < tiling->map_count; i++)
    ROTA_TRY(fill_map(plan, block, &tiling->maps[i], &maps->map[i]));
  return ROTA_OK;
}
