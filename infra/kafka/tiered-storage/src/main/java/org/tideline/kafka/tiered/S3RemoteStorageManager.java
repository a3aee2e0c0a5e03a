package org.tideline.kafka.tiered;

import java.io.InputStream;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.awscore.retry.AwsRetryStrategy;
import software.amazon.awssdk.core.checksums.RequestChecksumCalculation;
import software.amazon.awssdk.core.checksums.ResponseChecksumValidation;
import software.amazon.awssdk.core.sync.RequestBody;
import software.amazon.awssdk.http.urlconnection.UrlConnectionHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.S3ClientBuilder;
import software.amazon.awssdk.services.s3.S3Configuration;
import software.amazon.awssdk.services.s3.model.NoSuchKeyException;

/**
 * Keeps the files of tiered segments on S3, one object per file, byte for byte.
 *
 * <p>{@code .log} is written last and deleted first, so that its presence marks a complete set.
 * Every failure leaves as a {@link RemoteStorageException}: only for that one does the broker
 * delete what a failed copy left behind. Deletes are idempotent. Thread safe.
 */
public final class S3RemoteStorageManager implements RemoteStorageManager {
  private static final Logger LOG = LoggerFactory.getLogger(S3RemoteStorageManager.class);

  private static final List<IndexType> INDEXES = List.of(IndexType.values());

  private String bucket;
  private SegmentKeys keys;
  private S3Client s3;

  @Override
  public void configure(Map<String, ?> configs) {
    S3RemoteStorageConfig config = new S3RemoteStorageConfig(configs);
    bucket = config.bucket();
    keys = new SegmentKeys(config.keyPrefix());
    s3 = client(config);
    LOG.info(
        "Segments go to s3://{}/{} at {}",
        bucket,
        config.keyPrefix(),
        config.endpoint() == null ? "AWS " + config.region() : config.endpoint());
  }

  private static S3Client client(S3RemoteStorageConfig config) {
    S3ClientBuilder builder =
        S3Client.builder()
            .region(Region.of(config.region()))
            .forcePathStyle(config.pathStyle())
            // Servers other than AWS refuse the SDK's chunked bodies with trailing checksums.
            .serviceConfiguration(S3Configuration.builder().chunkedEncodingEnabled(false).build())
            .requestChecksumCalculation(RequestChecksumCalculation.WHEN_REQUIRED)
            .responseChecksumValidation(ResponseChecksumValidation.WHEN_REQUIRED)
            .httpClientBuilder(
                UrlConnectionHttpClient.builder()
                    .connectionTimeout(config.connectTimeout())
                    .socketTimeout(config.socketTimeout()))
            .overrideConfiguration(
                override ->
                    override
                        .apiCallAttemptTimeout(config.attemptTimeout())
                        .apiCallTimeout(config.callTimeout())
                        .retryStrategy(
                            AwsRetryStrategy.standardRetryStrategy().toBuilder()
                                .maxAttempts(config.maxAttempts())
                                .build()));
    if (config.endpoint() != null) {
      builder.endpointOverride(config.endpoint());
    }
    if (config.accessKey() != null) {
      builder.credentialsProvider(
          StaticCredentialsProvider.create(
              AwsBasicCredentials.create(config.accessKey(), config.secretKey())));
    }
    return builder.build();
  }

  @Override
  public Optional<CustomMetadata> copyLogSegmentData(
      RemoteLogSegmentMetadata segment, LogSegmentData data) throws RemoteStorageException {
    return guarded(
        "copy",
        segment,
        () -> {
          putFile(keys.index(segment, IndexType.OFFSET), data.offsetIndex());
          putFile(keys.index(segment, IndexType.TIMESTAMP), data.timeIndex());
          putFile(keys.index(segment, IndexType.PRODUCER_SNAPSHOT), data.producerSnapshotIndex());
          put(
              keys.index(segment, IndexType.LEADER_EPOCH),
              RequestBody.fromRemainingByteBuffer(data.leaderEpochIndex().duplicate()));
          data.transactionIndex()
              .ifPresent(file -> putFile(keys.index(segment, IndexType.TRANSACTION), file));
          putFile(keys.log(segment), data.logSegment());
          return Optional.empty();
        });
  }

  @Override
  public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int startPosition)
      throws RemoteStorageException {
    return fetchLogSegment(segment, startPosition, Integer.MAX_VALUE);
  }

  /** Bytes {@code startPosition} to {@code endPosition}, both inclusive; the end is clamped. */
  @Override
  public InputStream fetchLogSegment(
      RemoteLogSegmentMetadata segment, int startPosition, int endPosition)
      throws RemoteStorageException {
    int size = segment.segmentSizeInBytes();
    if (startPosition < 0 || startPosition > size || endPosition < startPosition) {
      throw new RemoteStorageException(
          "bytes %d to %d are not within the %d bytes of %s"
              .formatted(startPosition, endPosition, size, keys.log(segment)));
    }
    if (startPosition == size) {
      return InputStream.nullInputStream();
    }
    int last = Math.min(endPosition, size - 1);
    return guarded(
        "read", segment, () -> get(keys.log(segment), "bytes=" + startPosition + "-" + last));
  }

  @Override
  public InputStream fetchIndex(RemoteLogSegmentMetadata segment, IndexType type)
      throws RemoteStorageException {
    return guarded("read", segment, () -> get(keys.index(segment, type), null));
  }

  @Override
  public void deleteLogSegmentData(RemoteLogSegmentMetadata segment)
      throws RemoteStorageException {
    guarded(
        "delete",
        segment,
        () -> {
          delete(keys.log(segment));
          INDEXES.forEach(type -> delete(keys.index(segment, type)));
          return null;
        });
  }

  @Override
  public void close() {
    if (s3 != null) {
      s3.close();
    }
  }

  private void putFile(String key, Path file) {
    put(key, RequestBody.fromFile(file));
  }

  private void put(String key, RequestBody body) {
    s3.putObject(request -> request.bucket(bucket).key(key), body);
  }

  private InputStream get(String key, String range) {
    return new AbortOnCloseInputStream(
        s3.getObject(request -> request.bucket(bucket).key(key).range(range)));
  }

  private void delete(String key) {
    s3.deleteObject(request -> request.bucket(bucket).key(key));
  }

  @FunctionalInterface
  private interface Call<T> {
    T run();
  }

  private <T> T guarded(String what, RemoteLogSegmentMetadata segment, Call<T> call)
      throws RemoteStorageException {
    try {
      return call.run();
    } catch (NoSuchKeyException e) {
      throw new RemoteResourceNotFoundException(
          "s3://%s has no such object of %s".formatted(bucket, keys.log(segment)), e);
    } catch (RuntimeException e) {
      throw new RemoteStorageException(
          "cannot %s s3://%s/%s: %s".formatted(what, bucket, keys.log(segment), e.getMessage()), e);
    }
  }
}
