/* Level 2. Pieces that both plots of a picture use. */
#include "generator/picture_parts.h"

/* UTF-8: bytes 10xxxxxx continue a character. */
static bool starts_character(char byte) {
  return ((unsigned char)byte & 0xc0) != 0x80;
}

void escaped_append(Text *svg, const char *string, int most) {
  int length = 0, count = 0;
  for (const char *at = string; *at; at++)
    length += starts_character(*at);
  for (; *string; string++) {
    count += starts_character(*string);
    if (length > most && count > most - 3) {
      text_append(svg, "...");
      return;
    }
    unsigned char at = (unsigned char)*string;
    if (at == '&')
      text_append(svg, "&amp;");
    else if (at == '<')
      text_append(svg, "&lt;");
    else if (at == '>')
      text_append(svg, "&gt;");
    else if (at >= ' ')
      text_append_bytes(svg, string, 1);
  }
}

/* Relative commands: shorter, and one path holds thousands of them. */
void rectangle_append(Text *path, int64_t x, int64_t y, int64_t width, int64_t height) {
  text_format(path, "M%lld %lldh%lldv%lldh-%lldz", (long long)x, (long long)y, (long long)width,
              (long long)height, (long long)width);
}

void path_append(Text *svg, const char *class, const Text *path) {
  if (path->length == 0)
    return;
  text_format(svg, "<path class=\"%s\" d=\"", class);
  text_append_bytes(svg, path->data, path->length);
  text_append(svg, "\"/>\n");
}

void view_begin(Text *svg, Frame frame, int64_t columns, int64_t rows) {
  text_format(svg,
              "<svg x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %lld %lld\" "
              "preserveAspectRatio=\"none\">\n",
              frame.x, frame.y, frame.width, frame.height, (long long)(columns ? columns : 1),
              (long long)(rows ? rows : 1));
}

void axis_append(Text *svg, Axis axis) {
  text_format(svg,
              axis.down ? "<path class=\"axis\" d=\"M%d %dv%d\"/>\n"
                        : "<path class=\"axis\" d=\"M%d %dh%d\"/>\n",
              axis.x, axis.y, axis.length);
  if (axis.units == 0)
    return;
  int64_t step = 1; /* of two's powers, as lengths tend to be */
  while (step * 5 * axis.per < axis.units)
    step *= 2;
  for (int64_t at = 0; at * axis.per <= axis.last; at += step) {
    int offset = (int)(at * axis.per * axis.length / axis.units);
    int x = axis.down ? axis.x : axis.x + offset, y = axis.down ? axis.y + offset : axis.y;
    text_format(svg,
                axis.down ? "<path class=\"axis\" d=\"M%d %dh-5\"/>"
                          : "<path class=\"axis\" d=\"M%d %dv-5\"/>",
                x, y);
    text_format(svg, "<text class=\"tick-%c\" x=\"%d\" y=\"%d\">%lld</text>\n",
                axis.down ? 'y' : 'x', axis.down ? x - 8 : x, axis.down ? y + 4 : y - 9,
                (long long)at);
  }
}

int legend_append(Text *svg, int x, int y, const char *class, const char *name, int64_t count,
                  int64_t all) {
  /* Tenths of a percent, rounded; formatted without %f for the locale's sake. */
  long long tenths = all > 0 ? (long long)((double)count * 1000.0 / (double)all + 0.5) : 0;
  text_format(svg, "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"12\" height=\"12\"/>", class, x,
              y - 10);
  text_format(svg, "<text x=\"%d\" y=\"%d\">%s %lld (%lld.%lld %%)</text>\n", x + 18, y, name,
              (long long)count, tenths / 10, tenths % 10);
  return x + LEGEND_STEP;
}
