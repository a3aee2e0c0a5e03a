package org.tideline.kafka.tiered;

import java.io.FilterInputStream;
import java.io.IOException;
import software.amazon.awssdk.core.ResponseInputStream;

/**
 * Drops the connection when a body is closed before its end. The broker reads only a part of most
 * bodies, and the SDK would drain the rest of a segment first.
 */
final class AbortOnCloseInputStream extends FilterInputStream {
  private final ResponseInputStream<?> body;
  private boolean ended;

  AbortOnCloseInputStream(ResponseInputStream<?> body) {
    super(body);
    this.body = body;
  }

  @Override
  public int read() throws IOException {
    int value = body.read();
    ended |= value < 0;
    return value;
  }

  @Override
  public int read(byte[] bytes, int offset, int length) throws IOException {
    int count = body.read(bytes, offset, length);
    ended |= count < 0;
    return count;
  }

  @Override
  public void close() throws IOException {
    if (ended) {
      body.close();
    } else {
      body.abort();
    }
  }
}
