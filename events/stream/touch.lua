-- Touch: send a consumer's heartbeat, when it has no room for entries. alive.lua precedes this script.
--
-- KEYS    1 stream
-- ARGV    1 group   2 consumer
-- Returns nothing. Refuses with NOGROUP if the group or the stream does not exist.
heartbeat(KEYS[1], ARGV[1], ARGV[2])
