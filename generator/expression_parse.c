/* Level 2. Parser of the expression language, and its messages.
 *
 * Precedence climbing with Lua's own table of priorities. The first error stops: the builder then
 * holds a message and a byte position, from which build_report makes source line and caret. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "generator/expression_lex.h"

typedef struct Parser {
  Lexer lexer;
  Builder builder;
  Symbols symbols; /* a copy, given back when all went well */
  const ScopeEntry *scope;
  int scope_count;
  int nesting;
} Parser;

/* Priorities as in Lua's parser: an operator binds what stands left of it when its left priority
 * exceeds the limit; the right one is the limit for its right operand. */
static const struct {
  const char *text;
  Operation operation;
  int left, right;
  bool swapped; /* a > b is b < a */
} binary_operators[] = {
    {"or", OP_OR, 1, 1, false},
    {"and", OP_AND, 2, 2, false},
    {"<", OP_LESS, 3, 3, false},
    {">", OP_LESS, 3, 3, true},
    {"<=", OP_LESS_EQUAL, 3, 3, false},
    {">=", OP_LESS_EQUAL, 3, 3, true},
    {"==", OP_EQUAL, 3, 3, false},
    {"~=", OP_NOT_EQUAL, 3, 3, false},
    {"+", OP_ADD, 10, 10, false},
    {"-", OP_SUBTRACT, 10, 10, false},
    {"*", OP_MULTIPLY, 11, 11, false},
    {"/", OP_DIVIDE, 11, 11, false},
    {"//", OP_FLOOR_DIVIDE, 11, 11, false},
    {"%", OP_MODULO, 11, 11, false},
    {"^", OP_POWER, 14, 13, false}, /* right associative */
};
enum { UNARY_PRIORITY = 12 };

static int parse(Parser *parser, int limit);

/* ---- Names ---- */

static bool same_name(const char *text, int32_t length, const char *name) {
  return strlen(name) == (size_t)length && strncmp(text, name, (size_t)length) == 0;
}

static int find_index(const char *text, int32_t length) {
  for (int i = 0; i < INDEX_COUNT; i++)
    if (same_name(text, length, index_names[i]))
      return i;
  return -1;
}

/* The operation of a function's name; those from SELECT on in the list are functions. */
static int find_function(const char *text, int32_t length) {
  for (int i = OP_SELECT; i < OPERATION_COUNT; i++)
    if (same_name(text, length, operation_text((Operation)i)))
      return i;
  return -1;
}

static bool is_reserved(const char *text, int32_t length) {
  static const char *const words[] = {"and", "or", "not", "true", "false", "s"};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
    if (same_name(text, length, words[i]))
      return true;
  return find_index(text, length) >= 0 || find_function(text, length) >= 0;
}

bool expression_name_valid(const char *name) {
  size_t length = strlen(name);
  if (length == 0 || length >= SYMBOL_NAME_MAX || (name[0] >= '0' && name[0] <= '9'))
    return false;
  for (size_t i = 0; i < length; i++)
    if (!lexer_is_name_byte(name[i]))
      return false;
  return !is_reserved(name, (int32_t)length);
}

static int find_parameter(const Parser *parser, const char *text, int32_t length) {
  if (!parser->scope) {
    for (int i = 0; i < parser->symbols.parameter_count; i++)
      if (same_name(text, length, parser->symbols.parameters[i].name))
        return i;
    return -1;
  }
  for (int i = 0; i < parser->scope_count; i++)
    if (same_name(text, length, parser->scope[i].name))
      return parser->scope[i].index;
  return -1;
}

static bool is_tensor(const Parser *parser, const char *text, int32_t length) {
  for (int i = 0; i < parser->symbols.tensor_count; i++)
    if (same_name(text, length, parser->symbols.tensors[i].name))
      return true;
  return false;
}

static int parameter(Parser *parser, int index) {
  const Parameter *symbol = &parser->symbols.parameters[index];
  bool is_int = symbol->type == VALUE_INT;
  if (symbol->constant && !is_int && !isfinite(symbol->value.f))
    return build_fail(&parser->builder, "the constant '%s' is not a finite number", symbol->name);
  if (!symbol->constant)
    return build_leaf(&parser->builder, OP_PARAMETER, symbol->type, index);
  return build_constant(&parser->builder, symbol->type, is_int ? symbol->value.i : 0,
                        is_int ? 0 : symbol->value.f);
}

/* The tensor of this name, declared if new; -1 with a message if it cannot be. */
static int find_tensor(Parser *parser, const Token *name, int rank) {
  const char *text = parser->lexer.text + name->position;
  Symbols *symbols = &parser->symbols;
  bool in_mask = parser->builder.kind == EXPRESSION_MASK;
  int index = 0;
  while (index < symbols->tensor_count &&
         !same_name(text, name->length, symbols->tensors[index].name))
    index++;
  TensorSymbol *tensor = &symbols->tensors[index];
  if (index == symbols->tensor_count) {
    if (index == TENSORS_MAX)
      return lexer_fail(&parser->lexer, name->position, "more than %d tensors", TENSORS_MAX);
    *tensor = (TensorSymbol){.element = in_mask ? ROTA_INT32 : ROTA_FP32};
    memcpy(tensor->name, text, (size_t)name->length);
    symbols->tensor_count++;
  }
  if (tensor->rank == 0)
    tensor->rank = rank;
  if (tensor->rank != rank)
    return lexer_fail(&parser->lexer, name->position, "tensor '%s' has %d %s elsewhere, %d here",
                      tensor->name, tensor->rank, tensor->rank == 1 ? "index" : "indices", rank);
  tensor->in_mask |= in_mask;
  return index;
}

/* ---- Grammar ---- */

static bool expect(Parser *parser, const char *text, const char *why) {
  if (lexer_token_is(&parser->lexer, text))
    return lexer_advance(&parser->lexer);
  if (!parser->builder.message[0])
    lexer_fail(&parser->lexer, parser->lexer.token.position, "'%s' expected %s", text, why);
  return false;
}

/* Operands between brackets, the opening one being the current token; returns how many. */
static int parse_list(Parser *parser, const char *close, int *operands, int limit) {
  int count = 0;
  do {
    if (!lexer_advance(&parser->lexer))
      return -1;
    if (count == limit)
      return lexer_fail(&parser->lexer, parser->lexer.token.position, "more than %d operands",
                        limit);
    operands[count] = parse(parser, 0);
    if (operands[count++] < 0)
      return -1;
  } while (lexer_token_is(&parser->lexer, ","));
  return expect(parser, close, "to close the list") ? count : -1;
}

static int parse_tensor(Parser *parser, Token name) {
  int indices[TENSOR_RANK_MAX];
  int rank = parse_list(parser, "]", indices, TENSOR_RANK_MAX);
  int index = rank < 0 ? -1 : find_tensor(parser, &name, rank);
  if (index < 0)
    return -1;
  parser->builder.position = name.position;
  ValueType type = parser->symbols.tensors[index].element == ROTA_INT32 ? VALUE_INT : VALUE_FLOAT;
  return build_tensor(&parser->builder, index, type, indices, rank);
}

static int parse_call(Parser *parser, Operation function, Token name) {
  enum { OPERANDS_MAX = 16 };
  int operands[OPERANDS_MAX];
  Builder *builder = &parser->builder;
  if (!lexer_token_is(&parser->lexer, "("))
    return lexer_fail(&parser->lexer, name.position, "'%s' is a function: write %s(...)",
                      operation_text(function), operation_text(function));
  int count = parse_list(parser, ")", operands, OPERANDS_MAX);
  if (count < 0)
    return -1;
  builder->position = name.position;
  bool extremum = function == OP_MIN || function == OP_MAX;
  int wanted = function == OP_SELECT ? 3 : 1;
  if (extremum ? count < 2 : count != wanted)
    return lexer_fail(&parser->lexer, name.position, "'%s' takes %s, got %d",
                      operation_text(function),
                      extremum      ? "two or more operands"
                      : wanted == 3 ? "three operands"
                                    : "one operand",
                      count);
  if (function == OP_SELECT)
    return build_select(builder, operands[0], operands[1], operands[2]);
  if (!extremum)
    return build_unary(builder, function, operands[0]);
  int result = operands[0];
  for (int i = 1; i < count; i++)
    result = build_binary(builder, function, result, operands[i]);
  return result;
}

static int parse_name(Parser *parser, Token name) {
  Lexer *lexer = &parser->lexer;
  Builder *builder = &parser->builder;
  const char *text = lexer->text + name.position;
  if (name.length >= SYMBOL_NAME_MAX)
    return lexer_fail(lexer, name.position, "the name is longer than %d characters",
                      SYMBOL_NAME_MAX - 1);
  if (!lexer_advance(lexer))
    return -1;
  builder->position = name.position;
  if (same_name(text, name.length, "true") || same_name(text, name.length, "false"))
    return build_constant(builder, VALUE_BOOL, name.length == 4, 0);
  int function = find_function(text, name.length);
  if (function >= 0)
    return parse_call(parser, (Operation)function, name);
  int index = find_index(text, name.length), symbol = find_parameter(parser, text, name.length);
  bool is_score = same_name(text, name.length, "s"), indexed = lexer_token_is(lexer, "[");
  if (is_reserved(text, name.length) && index < 0 && !is_score)
    return lexer_fail(lexer, name.position, "an operand expected before '%.*s'", (int)name.length,
                      text);
  /* One leaf's parameter may bear the name of another leaf's tensor: the bracket tells. */
  bool number = index >= 0 || is_score || (symbol >= 0 && !is_tensor(parser, text, name.length));
  if (indexed && number)
    return lexer_fail(lexer, name.position, "'%.*s' is a number, not a tensor", (int)name.length,
                      text);
  if (indexed)
    return parse_tensor(parser, name);
  if (index >= 0)
    return build_leaf(builder, OP_INDEX, VALUE_INT, index);
  if (is_score && builder->kind == EXPRESSION_MASK)
    return lexer_fail(lexer, name.position, "the score 's' cannot stand in a mask");
  if (is_score)
    return build_leaf(builder, OP_SCORE, VALUE_FLOAT, 0);
  if (symbol >= 0)
    return parameter(parser, symbol);
  return lexer_fail(lexer, name.position, "unknown %s '%.*s'",
                    lexer_token_is(lexer, "(") ? "function" : "name", (int)name.length, text);
}

static int parse_operand(Parser *parser) {
  Lexer *lexer = &parser->lexer;
  Token token = lexer->token;
  if (parser->builder.message[0])
    return -1;
  if (token.kind == TOKEN_NAME)
    return parse_name(parser, token);
  if (token.kind == TOKEN_INTEGER || token.kind == TOKEN_REAL) {
    if (!lexer_advance(lexer))
      return -1;
    parser->builder.position = token.position;
    return build_constant(&parser->builder, token.kind == TOKEN_REAL ? VALUE_FLOAT : VALUE_INT,
                          token.integer, token.real);
  }
  if (lexer_token_is(lexer, "(")) {
    if (!lexer_advance(lexer))
      return -1;
    int inner = parse(parser, 0);
    return inner >= 0 && expect(parser, ")", "to close the parenthesis") ? inner : -1;
  }
  if (token.kind == TOKEN_END)
    return lexer_fail(lexer, token.position, "an operand expected, the text ends here");
  return lexer_fail(lexer, token.position, "an operand expected before '%.*s'", (int)token.length,
                    lexer->text + token.position);
}

static int parse_unary(Parser *parser) {
  Operation operation = lexer_token_is(&parser->lexer, "not") ? OP_NOT : OP_NEGATE;
  int32_t position = parser->lexer.token.position;
  if (!lexer_advance(&parser->lexer))
    return -1;
  int operand = parse(parser, UNARY_PRIORITY);
  parser->builder.position = operand < 0 ? parser->builder.position : position;
  return build_unary(&parser->builder, operation, operand);
}

/* Builds `a operator b`; > and >= become < and <= of swapped operands. */
static int apply(Parser *parser, size_t entry, int32_t position, int a, int b) {
  Builder *builder = &parser->builder;
  if (a < 0 || b < 0)
    return -1;
  builder->position = position;
  if (!binary_operators[entry].swapped)
    return build_binary(builder, binary_operators[entry].operation, a, b);
  if (builder->nodes[a].type == VALUE_BOOL || builder->nodes[b].type == VALUE_BOOL)
    return build_fail(builder, "'%s' needs two numbers, one operand is a condition",
                      binary_operators[entry].text);
  return build_binary(builder, binary_operators[entry].operation, b, a);
}

static int parse(Parser *parser, int limit) {
  enum { ENTRIES = sizeof binary_operators / sizeof binary_operators[0] };
  Lexer *lexer = &parser->lexer;
  if (parser->nesting >= NESTING_MAX)
    return lexer_fail(lexer, lexer->token.position, "nested more than %d levels deep", NESTING_MAX);
  parser->nesting++;
  bool unary = lexer_token_is(lexer, "-") || lexer_token_is(lexer, "not");
  int left = unary ? parse_unary(parser) : parse_operand(parser);
  while (left >= 0) {
    size_t entry = 0;
    while (entry < ENTRIES && !lexer_token_is(lexer, binary_operators[entry].text))
      entry++;
    if (entry == ENTRIES || binary_operators[entry].left <= limit)
      break;
    int32_t position = lexer->token.position;
    if (!lexer_advance(lexer))
      return -1;
    left = apply(parser, entry, position, left, parse(parser, binary_operators[entry].right));
  }
  parser->nesting--;
  return left;
}

/* The whole text, and what kind of value it must have. */
static int parse_all(Parser *parser) {
  Lexer *lexer = &parser->lexer;
  Builder *builder = &parser->builder;
  if (!lexer_advance(lexer))
    return -1;
  if (lexer->token.kind == TOKEN_END)
    return lexer_fail(lexer, 0, "the expression is empty");
  int root = parse(parser, 0);
  if (root < 0)
    return -1;
  if (lexer->token.kind != TOKEN_END)
    return lexer_fail(lexer, lexer->token.position, "an operator expected before '%.*s'",
                      (int)lexer->token.length, lexer->text + lexer->token.position);
  builder->position = builder->nodes[root].position;
  bool is_condition = builder->nodes[root].type == VALUE_BOOL;
  if (builder->kind == EXPRESSION_SCORE && is_condition)
    return build_fail(builder, "a score must be a number, this is a condition");
  if (builder->kind == EXPRESSION_MASK && !is_condition)
    return build_fail(builder, "a mask must be a condition, this is %s",
                      builder->nodes[root].type == VALUE_INT ? "an int" : "a float");
  return builder->kind == EXPRESSION_SCORE ? build_float(builder, root) : root;
}

rota_status expression_parse(const char *text, SourcePlace place, ExpressionKind kind,
                             Symbols *symbols, const ScopeEntry *scope, int scope_count,
                             Expression **expression) {
  *expression = NULL;
  if (strnlen(text, EXPRESSION_TEXT_MAX + 1) > EXPRESSION_TEXT_MAX)
    return status_fail(ROTA_SCRIPT, "%s:%d: the expression is longer than %d bytes",
                       place.file ? place.file : "expression", place.line, EXPRESSION_TEXT_MAX);
  Parser parser = {.symbols = *symbols, .scope = scope, .scope_count = scope_count};
  parser.builder.kind = kind;
  parser.lexer = (Lexer){.text = text, .builder = &parser.builder};
  parser.lexer.numbers = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  if (!parser.lexer.numbers)
    return status_fail(ROTA_OUT_OF_MEMORY, "out of memory parsing an expression");
  int root = parse_all(&parser);
  freelocale(parser.lexer.numbers);
  if (root < 0) {
    rota_status status = build_report(&parser.builder, text, place);
    free(parser.builder.nodes);
    return status;
  }
  *expression = build_finish(&parser.builder, root, place, text);
  if (!*expression)
    return ROTA_OUT_OF_MEMORY;
  *symbols = parser.symbols;
  return ROTA_OK;
}
