-- Leave: remove a consumer that has nothing pending. XGROUP DELCONSUMER alone would drop pending entries.
--
-- KEYS    1 stream
-- ARGV    1 group   2 consumer
-- Returns 1 if the consumer is gone, 0 if it has pending entries and stays.
-- Refuses with NOGROUP if the group or the stream does not exist.
if redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2])[1] then return 0 end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
