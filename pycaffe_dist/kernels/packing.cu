// Crop, mirror, mean subtraction and scaling of images whose pixels come as rows of bytes.

// The head of a row; its pixels follow from byte 16 on, as planes or interleaved.
struct Place {
  int top, left, mirrored, interleaved;
};

// The mean is an image (channels, mean_height, mean_width), or one value per channel with both 0.
template <typename T, typename P>
__global__ void unpack_images(const unsigned char* rows, int pitch, const P* mean, int mean_height,
                              int mean_width, Wide<T> scale, T* out, int channels, int height,
                              int width, int lines, int shift) {
  for EACH_ROW(line, lines, shift) {
    const int h = line % height, plane = line / height, c = plane % channels;
    const unsigned char* row = rows + (long long)(plane / channels) * pitch;
    const Place place = *(const Place*)row;
    const unsigned char* pixels = row + sizeof(Place);
    const int step = place.interleaved ? channels : 1;
    const int begin = place.interleaved ? h * width * channels + c : (c * height + h) * width;
    const unsigned char* from = pixels + begin;
    const P* means = mean + c;
    if (mean_width) {
      means = mean + ((long long)c * mean_height + place.top + h) * mean_width + place.left;
    }
    for EACH_IN_ROW(w, width, shift) {
      const int x = place.mirrored ? width - 1 - w : w;
      const Wide<T> value = Wide<T>(from[x * step]) - Wide<T>(means[mean_width ? x : 0]);
      store(out, (long long)line * width + w, value * scale);
    }
  }
}
