/* Level 0. How long things take. */
#ifndef ROTA_GENERATOR_CLOCK_H
#define ROTA_GENERATOR_CLOCK_H

/* Seconds since some fixed moment, by a clock that never goes back. Thread-safe. */
double clock_seconds(void);

#endif
