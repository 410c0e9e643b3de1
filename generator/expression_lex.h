/* Level 2. Tokens of the expression language, for expression_parse.c. */
#ifndef ROTA_GENERATOR_EXPRESSION_LEX_H
#define ROTA_GENERATOR_EXPRESSION_LEX_H

#include <locale.h>

#include "generator/expression_ast.h"

typedef enum TokenKind {
  TOKEN_END, /* also after an error */
  TOKEN_NAME,
  TOKEN_INTEGER,
  TOKEN_REAL,
  TOKEN_OPERATOR
} TokenKind;

typedef struct Token {
  TokenKind kind;
  int32_t position, length; /* in the source */
  int64_t integer;
  float real;
} Token;

typedef struct Lexer {
  const char *text;
  int32_t at;       /* next byte to read */
  Token token;      /* the current one; END stands right behind the last token */
  locale_t numbers; /* the "C" locale: a decimal point wherever we run */
  Builder *builder; /* takes message and position of an error */
} Lexer;

/* Reads the next token; on failure the message is set. */
bool lexer_advance(Lexer *lexer);
bool lexer_token_is(const Lexer *lexer, const char *text);
/* Sets the error's position; returns -1. */
int lexer_fail(Lexer *lexer, int32_t position, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool lexer_is_name_byte(char byte); /* letter, digit or _ */

#endif
