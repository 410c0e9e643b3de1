/* Safetensors files: the real one in tests/data, what is written and read back, and files that
 * lie. */
#include "runtime/safetensors.h"

#include "runtime/cpu_numbers.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void test_real_file(void **state) {
  (void)state;
  char path[4096];
  const char *source = getenv("ROTA_TEST_SOURCE");
  snprintf(path, sizeof path, "%s/tests/data/minilm_qkv.safetensors", source ? source : ".");
  Safetensors *file;
  if (safetensors_read(path, &file) != ROTA_OK)
    fail_msg("%s", status_message());
  const SafetensorsEntry *document = safetensors_find(file, "document");
  assert_non_null(document);
  assert_int_equal(document->dtype, ROTA_INT32);
  assert_int_equal(document->rank, 2);
  int64_t tokens = document->size[1];
  assert_in_range(tokens, 200, 256);
  const int32_t *ids = document->data;
  for (int64_t i = 1; i < tokens; i++)
    assert_true(ids[i] == ids[i - 1] || ids[i] == ids[i - 1] + 1);
  assert_true(ids[0] == 0 && ids[tokens - 1] == 2);
  const char *names[] = {"q", "k", "v"};
  for (int i = 0; i < 3; i++) {
    const SafetensorsEntry *entry = safetensors_find(file, names[i]);
    assert_non_null(entry);
    assert_true(entry->supported && entry->dtype == ROTA_BF16 && entry->rank == 4);
    assert_true(entry->size[0] == 1 && entry->size[1] == tokens && entry->size[2] == 12 &&
                entry->size[3] == 32);
    double sum = 0.0;
    float *values = malloc(entry->bytes * 2);
    assert_non_null(values);
    numbers_load(ROTA_BF16, entry->data, (int64_t)entry->bytes / 2, values);
    for (size_t j = 0; j < entry->bytes / 2; j++)
      sum += (double)(values[j] * values[j]);
    free(values);
    double root = sqrt(sum / (double)(entry->bytes / 2)); /* activations, neither zeros nor noise */
    assert_true(root > 0.1 && root < 10.0);
  }
  assert_true(file->note_count > 0);
  assert_null(safetensors_find(file, "nothing"));
  safetensors_destroy(file);
}

static void test_round_trip(void **state) {
  (void)state;
  char path[] = "/tmp/rota-safetensors-XXXXXX";
  int handle = mkstemp(path);
  assert_true(handle >= 0);
  close(handle);
  float numbers[6] = {1, -2, 3.5f, INFINITY, 0, -0.0f};
  uint16_t halves[3] = {0x3f80, 0xffff, 1};
  SafetensorsEntry entries[] = {
      {.name = "half \"quoted\"",
       .dtype = ROTA_BF16,
       .rank = 1,
       .size = {3},
       .data = halves,
       .bytes = 6},
      {.name = "empty", .dtype = ROTA_FP32, .rank = 2, .size = {0, 5}, .data = numbers},
      {.name = "numbers",
       .dtype = ROTA_FP16,
       .rank = 3,
       .size = {1, 6, 2},
       .data = numbers,
       .bytes = 24},
      {.name = "scalar", .dtype = ROTA_FP16, .rank = 0, .data = halves, .bytes = 2},
  };
  SafetensorsNote note = {"made by", "a test: \xc3\xa4"};
  assert_int_equal(safetensors_write(path, entries, 4, &note, 1), ROTA_OK);
  Safetensors *file;
  if (safetensors_read(path, &file) != ROTA_OK)
    fail_msg("%s", status_message());
  assert_int_equal(file->count, 4);
  for (int i = 0; i < 4; i++) {
    const SafetensorsEntry *entry = safetensors_find(file, entries[i].name);
    assert_non_null(entry);
    assert_true(entry->dtype == entries[i].dtype && entry->rank == entries[i].rank &&
                entry->bytes == entries[i].bytes);
    assert_memory_equal(entry->size, entries[i].size, sizeof entry->size);
    if (entry->bytes)
      assert_memory_equal(entry->data, entries[i].data, entry->bytes);
  }
  assert_string_equal(file->notes[0].text, note.text);
  safetensors_destroy(file);
  remove(path);
  assert_int_equal(safetensors_write("/nonexistent/directory/x", entries, 1, NULL, 0), ROTA_FILE);
  entries[0].name = "not \xff UTF-8";
  assert_int_equal(safetensors_write(path, entries, 1, NULL, 0), ROTA_INVALID_ARGUMENT);
  assert_int_equal(safetensors_read("/nonexistent/file", &file), ROTA_FILE);
  assert_int_equal(safetensors_read("/", &file), ROTA_FILE);
}

/* A file from a header and `data` bytes of content; `claimed` < 0: the header's true length. */
static rota_status parse(const char *header, size_t data, long long claimed, Safetensors **file) {
  size_t length = strlen(header);
  char *bytes = calloc(1, 8 + length + data + 1);
  assert_non_null(bytes);
  uint64_t n = claimed < 0 ? length : (uint64_t)claimed;
  for (int i = 0; i < 8; i++)
    bytes[i] = (char)(n >> (8 * i) & 0xff);
  memcpy(bytes + 8, header, length);
  return safetensors_parse(bytes, 8 + length + data, "lie", file);
}

#define ENTRY(type, shape, offsets)                                                                \
  "{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_lies(void **state) {
  (void)state;
  const struct {
    const char *header;
    size_t data;
    long long claimed;
    const char *message;
  } lies[] = {
      {"{}", 0, 1ll << 62, "cut off"},
      {"{}", 0, 3, "cut off"},
      {"{\"a\":", 0, -1, "header, column"},
      {"[]", 0, -1, "not a JSON object"},
      {"{}", 1, -1, "belong to no tensor"},
      {"{\"a\":7}", 0, -1, "no \"dtype\""},
      {"{\"a\":{}}", 0, -1, "no \"dtype\""},
      {"{\"a\":" ENTRY("F33", "[1]", "[0,4]") "}", 4, -1, "dtype 'F33'"},
      {"{\"a\":" ENTRY("F32", "{}", "[0,4]") "}", 4, -1, "\"shape\""},
      {"{\"a\":" ENTRY("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, -1, "\"shape\""},
      {"{\"a\":" ENTRY("F32", "[-1]", "[0,4]") "}", 4, -1, "size 1"},
      {"{\"a\":" ENTRY("F32", "[1.5]", "[0,4]") "}", 4, -1, "size 1"},
      {"{\"a\":" ENTRY("F32", "[4294967296,4294967296]", "[0,0]") "}", 0, -1, "size 2"},
      {"{\"a\":" ENTRY("F32", "[4611686018427387904]", "[0,0]") "}", 0, -1, "larger than memory"},
      {"{\"a\":" ENTRY("F32", "[99999999999999999999]", "[0,0]") "}", 0, -1, "header, column"},
      {"{\"a\":" ENTRY("F32", "[1]", "[0]") "}", 4, -1, "data_offsets"},
      {"{\"a\":" ENTRY("F32", "[1]", "[0,\"4\"]") "}", 4, -1, "data_offsets"},
      {"{\"a\":" ENTRY("F32", "[1]", "[-4,0]") "}", 4, -1, "outside"},
      {"{\"a\":" ENTRY("F32", "[1]", "[4,0]") "}", 4, -1, "outside"},
      {"{\"a\":" ENTRY("F32", "[1]", "[4,8]") "}", 4, -1, "outside"},
      {"{\"a\":" ENTRY("F32", "[2]", "[0,4]") "}", 4, -1, "need 8"},
      {"{\"a\":" ENTRY("F32", "[1]", "[0,4]") ",\"a\":" ENTRY("F32", "[1]", "[0,4]") "}", 4, -1,
       "header, column"},
      {"{\"a\":" ENTRY("F32", "[1]", "[0,4]") ",\"b\":" ENTRY("F32", "[1]", "[0,4]") "}", 4, -1,
       "end at 4"},
      {"{\"a\":" ENTRY("F32", "[2]", "[0,8]") ",\"b\":" ENTRY("F32", "[2]", "[4,12]") "}", 12, -1,
       "end at 8"},
      {"{\"a\":" ENTRY("F32", "[1]", "[0,4]") ",\"b\":" ENTRY("F32", "[1]", "[8,12]") "}", 12, -1,
       "end at 4"},
      {"{\"a\":" ENTRY("U8", "[1]", "[0,1]") ",\"b\":" ENTRY("F32", "[1]", "[1,5]") "}", 5, -1,
       "odd offset"},
      {"{\"__metadata__\":[]}", 0, -1, "__metadata__"},
      {"{\"__metadata__\":{\"a\":1}}", 0, -1, "__metadata__"},
  };
  for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
    Safetensors *file;
    assert_int_equal(parse(lies[i].header, lies[i].data, lies[i].claimed, &file), ROTA_FILE);
    assert_null(file);
    if (!strstr(status_message(), lies[i].message))
      fail_msg("%s\nexpected '%s' in: %s", lies[i].header, lies[i].message, status_message());
  }
  Safetensors *file;
  char *short_file = calloc(1, 7);
  assert_int_equal(safetensors_parse(short_file, 7, "lie", &file), ROTA_FILE);
}

static void test_unknown_use_is_fine(void **state) {
  (void)state;
  Safetensors *file;
  const char *header =
      "{\"wide\":" ENTRY("F64", "[2]", "[0,16]") ",\"none\":" ENTRY("F32", "[0]", "[16,16]") "}";
  assert_int_equal(parse(header, 16, -1, &file), ROTA_OK);
  assert_false(safetensors_find(file, "wide")->supported);
  assert_string_equal(safetensors_find(file, "wide")->type, "F64");
  safetensors_destroy(file);
  assert_int_equal(parse("{}", 0, -1, &file), ROTA_OK);
  assert_int_equal(file->count, 0);
  safetensors_destroy(file);
}

/* Random damage: any answer but a crash. Under the sanitizers, any wild read. */
static void test_damage(void **state) {
  (void)state;
  const char *header = "{\"__metadata__\":{\"a\":\"b\"},\"q\":" ENTRY(
      "BF16", "[1,4,2]", "[0,16]") ",\"d\":" ENTRY("I32", "[4]", "[16,32]") "}  ";
  size_t length = strlen(header), total = 8 + length + 32;
  unsigned seed = 5;
  int accepted = 0;
  for (int round = 0; round < 20000; round++) {
    char *bytes = calloc(1, total);
    assert_non_null(bytes);
    bytes[0] = (char)length;
    memcpy(bytes + 8, header, length);
    size_t size = total;
    for (int i = 0; i < 1 + round % 3; i++) {
      seed = seed * 1664525u + 1013904223u;
      unsigned char byte = (unsigned char)(seed >> 24);
      if (i == 0 && round % 7 == 0)
        size = (seed >> 8) % total;
      else
        bytes[(seed >> 8) % (8 + length)] = (char)(byte & 1 ? "0[]{},\":"[byte >> 5] : byte);
    }
    Safetensors *file;
    if (safetensors_parse(bytes, size, "damaged", &file) != ROTA_OK)
      continue;
    accepted++;
    for (int i = 0; i < file->count; i++) {
      unsigned sum = 0; /* every byte is read: the sanitizers see whether it may be */
      for (size_t j = 0; j < file->entries[i].bytes; j++)
        sum += ((const unsigned char *)file->entries[i].data)[j];
      assert_true(sum == 0); /* the data were zeros */
    }
    safetensors_destroy(file);
  }
  assert_in_range(accepted, 1, 10000); /* names and spaces may change; most damage must be seen */
}

static void test_memory_may_run_out(void **state) {
  (void)state;
  const char *header =
      "{\"__metadata__\":{\"a\":\"b\"},\"q\":" ENTRY("BF16", "[1,4,2]", "[0,16]") "}";
  for (long n = 1; n <= 4; n++) {
    Safetensors *file;
    memory_fail_at(n);
    assert_int_equal(parse(header, 16, -1, &file), ROTA_OUT_OF_MEMORY);
    memory_fail_at(0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_real_file), cmocka_unit_test(test_round_trip),
      cmocka_unit_test(test_lies),      cmocka_unit_test(test_unknown_use_is_fine),
      cmocka_unit_test(test_damage),    cmocka_unit_test(test_memory_may_run_out),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
