/* Level 2. The lexer of the expression language: Lua's tokens, without strings, and with hints
 * where somebody writes another language's operator. */
#include "generator/expression_lex.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int lexer_fail(Lexer *lexer, int32_t position, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(lexer->builder->message, sizeof lexer->builder->message, format, arguments);
  va_end(arguments);
  lexer->builder->position = position;
  return -1;
}

static bool is_digit(char byte) {
  return byte >= '0' && byte <= '9';
}

bool lexer_is_name_byte(char byte) {
  return byte == '_' || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
         is_digit(byte);
}

static void skip_blanks(Lexer *lexer) {
  const char *text = lexer->text;
  for (;;) {
    while (text[lexer->at] && strchr(" \t\r\n\f\v", text[lexer->at]))
      lexer->at++;
    if (text[lexer->at] != '-' || text[lexer->at + 1] != '-')
      return;
    while (text[lexer->at] && text[lexer->at] != '\n') /* a comment, as in Lua */
      lexer->at++;
  }
}

/* Hexadecimal or decimal whole numbers in 64 bits. */
static bool scan_integer(const char *text, int32_t length, int64_t *value) {
  bool hex = length > 2 && (text[1] | 32) == 'x';
  int base = hex ? 16 : 10;
  *value = 0;
  for (int32_t i = hex ? 2 : 0; i < length; i++) {
    int digit = is_digit(text[i]) ? text[i] - '0' : (text[i] | 32) - 'a' + 10;
    if (digit < 0 || digit >= base || __builtin_mul_overflow(*value, base, value) ||
        __builtin_add_overflow(*value, digit, value))
      return false;
  }
  return true;
}

static bool scan_number(Lexer *lexer, Token *token) {
  const char *begin = lexer->text + token->position;
  const char *end = begin;
  bool hex = begin[0] == '0' && (begin[1] | 32) == 'x', real = false;
  /* Takes what looks like one number, so that "3x" is one wrong number and not two tokens. */
  for (; lexer_is_name_byte(*end) || *end == '.'; end++) {
    real |= *end == '.';
    if (!hex && (*end | 32) == 'e') {
      real = true;
      if (end[1] == '+' || end[1] == '-')
        end++;
    }
  }
  token->length = (int32_t)(end - begin);
  token->kind = real ? TOKEN_REAL : TOKEN_INTEGER;
  if (!real) {
    if (scan_integer(begin, token->length, &token->integer))
      return true;
    lexer_fail(lexer, token->position, "malformed number, or too large for 64 bits");
    return false;
  }
  char *stop = NULL;
  locale_t users = uselocale(lexer->numbers); /* of this thread alone */
  token->real = strtof(begin, &stop);
  uselocale(users);
  if (!hex && stop == end && token->real <= 3.4028235e38f)
    return true;
  lexer_fail(lexer, token->position, "malformed number, or too large for a float");
  return false;
}

/* Operators that other languages have, and what to write. */
static const struct {
  const char *text, *message;
} foreign_operators[] = {
    {"!=", "'!=' is written '~=' here"},
    {"&&", "'&&' is written 'and' here"},
    {"||", "'||' is written 'or' here"},
    {"!", "'!' is written 'not' here"},
    {"<<", "there are no bit operators here"},
    {">>", "there are no bit operators here"},
    {"&", "there are no bit operators here; conditions are joined with 'and'"},
    {"|", "there are no bit operators here; conditions are joined with 'or'"},
    {"~", "there are no bit operators here; conditions are negated with 'not'"},
    {"?", "the conditional is written select(condition, a, b) here"},
    {"=", "'=' is no operator; equality is '=='"},
};

static bool scan_operator(Lexer *lexer, Token *token) {
  static const char *const two[] = {"//", "<=", ">=", "==", "~="};
  const char *at = lexer->text + token->position;
  token->kind = TOKEN_OPERATOR;
  token->length = 2;
  for (size_t i = 0; i < sizeof two / sizeof two[0]; i++)
    if (strncmp(at, two[i], 2) == 0)
      return true;
  for (size_t i = 0; i < sizeof foreign_operators / sizeof foreign_operators[0]; i++) {
    const char *text = foreign_operators[i].text;
    if (strncmp(at, text, strlen(text)) == 0) {
      lexer_fail(lexer, token->position, "%s", foreign_operators[i].message);
      return false;
    }
  }
  token->length = 1;
  if (strchr("+-*/%^<>()[],", *at))
    return true;
  unsigned char byte = (unsigned char)*at;
  if (byte > ' ' && byte < 127)
    lexer_fail(lexer, token->position, "unexpected '%c'", byte);
  else
    lexer_fail(lexer, token->position, "unexpected byte 0x%02x", byte);
  return false;
}

bool lexer_advance(Lexer *lexer) {
  Token *token = &lexer->token;
  int32_t end_of_last = lexer->at;
  skip_blanks(lexer);
  *token = (Token){.position = lexer->at};
  const char *at = lexer->text + lexer->at;
  bool good = true;
  if (*at == '\0') {
    token->position = end_of_last;
  } else if (is_digit(*at) || (*at == '.' && is_digit(at[1]))) {
    good = scan_number(lexer, token);
  } else if (lexer_is_name_byte(*at)) {
    token->kind = TOKEN_NAME;
    while (lexer_is_name_byte(at[token->length]))
      token->length++;
  } else {
    good = scan_operator(lexer, token);
  }
  lexer->at += token->length;
  if (!good)
    token->kind = TOKEN_END;
  return good;
}

bool lexer_token_is(const Lexer *lexer, const char *text) {
  const Token *token = &lexer->token;
  return (token->kind == TOKEN_OPERATOR || token->kind == TOKEN_NAME) &&
         (size_t)token->length == strlen(text) &&
         strncmp(lexer->text + token->position, text, strlen(text)) == 0;
}
