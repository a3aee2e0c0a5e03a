package org.tideline.kafka.tiered;

import java.util.Locale;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager.IndexType;

/**
 * Where a segment's files are: {@code
 * <prefix>/<topic>-<topicId>/<partition>/<20-digit start offset>-<segmentId>.<suffix>}.
 */
final class SegmentKeys {
  static final String LOG = "log";

  private final String prefix;

  SegmentKeys(String prefix) {
    this.prefix = prefix;
  }

  String log(RemoteLogSegmentMetadata segment) {
    return key(segment, LOG);
  }

  String index(RemoteLogSegmentMetadata segment, IndexType type) {
    return key(segment, suffix(type));
  }

  static String suffix(IndexType type) {
    return switch (type) {
      case OFFSET -> "index";
      case TIMESTAMP -> "timeindex";
      case TRANSACTION -> "txnindex";
      case PRODUCER_SNAPSHOT -> "snapshot";
      case LEADER_EPOCH -> "leader-epoch-checkpoint";
    };
  }

  private String key(RemoteLogSegmentMetadata segment, String suffix) {
    TopicIdPartition partition = segment.remoteLogSegmentId().topicIdPartition();
    return String.format(
        Locale.ROOT,
        "%s%s-%s/%d/%020d-%s.%s",
        prefix,
        partition.topic(),
        partition.topicId(),
        partition.partition(),
        segment.startOffset(),
        segment.remoteLogSegmentId().id(),
        suffix);
  }
}
