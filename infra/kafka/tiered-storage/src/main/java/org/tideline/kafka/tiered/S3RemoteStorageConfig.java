package org.tideline.kafka.tiered;

import java.net.URI;
import java.time.Duration;
import java.util.Map;
import org.apache.kafka.common.config.AbstractConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigDef.Importance;
import org.apache.kafka.common.config.ConfigDef.Range;
import org.apache.kafka.common.config.ConfigDef.Type;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.config.types.Password;

/** Settings of {@link S3RemoteStorageManager}; brokers hand them over as {@code rsm.config.*}. */
final class S3RemoteStorageConfig extends AbstractConfig {
  static final String BUCKET = "bucket";
  static final String PREFIX = "prefix";
  static final String REGION = "region";
  static final String ENDPOINT = "endpoint";
  static final String ACCESS_KEY = "access.key";
  static final String SECRET_KEY = "secret.key";
  static final String PATH_STYLE = "path.style";
  static final String CONNECT_TIMEOUT_MS = "connect.timeout.ms";
  static final String SOCKET_TIMEOUT_MS = "socket.timeout.ms";
  static final String ATTEMPT_TIMEOUT_MS = "attempt.timeout.ms";
  static final String CALL_TIMEOUT_MS = "call.timeout.ms";
  static final String MAX_ATTEMPTS = "max.attempts";

  private static final ConfigDef DEFINITION =
      new ConfigDef()
          .define(
              BUCKET,
              Type.STRING,
              ConfigDef.NO_DEFAULT_VALUE,
              new ConfigDef.NonEmptyString(),
              Importance.HIGH,
              "Bucket of the segments. It must exist.")
          .define(
              PREFIX,
              Type.STRING,
              "",
              Importance.MEDIUM,
              "Put before each key, with a slash between. Empty: none.")
          .define(REGION, Type.STRING, "us-east-1", Importance.MEDIUM, "Region to sign for.")
          .define(
              ENDPOINT,
              Type.STRING,
              null,
              Importance.MEDIUM,
              "URL of the S3 server. Unset: the AWS endpoint of the region.")
          .define(
              ACCESS_KEY,
              Type.STRING,
              null,
              Importance.HIGH,
              "Access key. Unset, with the secret key: the default chain of the AWS SDK.")
          .define(SECRET_KEY, Type.PASSWORD, null, Importance.HIGH, "Secret key; never logged.")
          .define(
              PATH_STYLE,
              Type.BOOLEAN,
              true,
              Importance.LOW,
              "Address buckets by path rather than by host name.")
          .define(
              CONNECT_TIMEOUT_MS,
              Type.INT,
              3_000,
              Range.atLeast(1),
              Importance.LOW,
              "Bound on opening a connection.")
          .define(
              SOCKET_TIMEOUT_MS,
              Type.INT,
              10_000,
              Range.atLeast(1),
              Importance.LOW,
              "Bound on one read from or write to a connection.")
          .define(
              ATTEMPT_TIMEOUT_MS,
              Type.INT,
              60_000,
              Range.atLeast(1),
              Importance.LOW,
              "Bound on one attempt of a request.")
          .define(
              CALL_TIMEOUT_MS,
              Type.INT,
              90_000,
              Range.atLeast(1),
              Importance.LOW,
              "Bound on a request with all its attempts.")
          .define(
              MAX_ATTEMPTS,
              Type.INT,
              3,
              Range.between(1, 10),
              Importance.LOW,
              "Attempts of a request. The broker itself retries a failed copy with backoff.");

  S3RemoteStorageConfig(Map<String, ?> values) {
    super(DEFINITION, values, false);
    if ((accessKey() == null) != (secretKey() == null)) {
      throw new ConfigException(
          "rsm.config." + ACCESS_KEY + " and rsm.config." + SECRET_KEY + " go together: set both or none");
    }
    if (getInt(CALL_TIMEOUT_MS) < getInt(ATTEMPT_TIMEOUT_MS)) {
      throw new ConfigException(
          CALL_TIMEOUT_MS,
          getInt(CALL_TIMEOUT_MS),
          "must not be below " + ATTEMPT_TIMEOUT_MS + "=" + getInt(ATTEMPT_TIMEOUT_MS));
    }
    endpoint();
  }

  String bucket() {
    return getString(BUCKET);
  }

  /** The key prefix, either empty or ending in one slash. */
  String keyPrefix() {
    String prefix = getString(PREFIX).replaceAll("^/+|/+$", "");
    return prefix.isEmpty() ? "" : prefix + "/";
  }

  String region() {
    return getString(REGION);
  }

  URI endpoint() {
    String endpoint = getString(ENDPOINT);
    if (endpoint == null || endpoint.isBlank()) {
      return null;
    }
    try {
      return URI.create(endpoint);
    } catch (IllegalArgumentException e) {
      throw new ConfigException(ENDPOINT, endpoint, "is not a URL: write http://host:port");
    }
  }

  String accessKey() {
    return getString(ACCESS_KEY);
  }

  String secretKey() {
    Password secret = getPassword(SECRET_KEY);
    return secret == null ? null : secret.value();
  }

  boolean pathStyle() {
    return getBoolean(PATH_STYLE);
  }

  Duration connectTimeout() {
    return Duration.ofMillis(getInt(CONNECT_TIMEOUT_MS));
  }

  Duration socketTimeout() {
    return Duration.ofMillis(getInt(SOCKET_TIMEOUT_MS));
  }

  Duration attemptTimeout() {
    return Duration.ofMillis(getInt(ATTEMPT_TIMEOUT_MS));
  }

  Duration callTimeout() {
    return Duration.ofMillis(getInt(CALL_TIMEOUT_MS));
  }

  int maxAttempts() {
    return getInt(MAX_ATTEMPTS);
  }
}
