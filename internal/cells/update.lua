-- update.lua stores changed records of cells, if all are as the caller has read them, and gives the change an epoch.
--
-- KEYS    1 cells (hash)   2 epoch (string)   3 log (stream)
-- ARGV    1 epoch that the directory must have, '' for any   2 entries that the log keeps
--         3… triples: name of a cell, its stored record or '' if there is none, the new record
-- Returns the new epoch, or 0 if the epoch or a record is another one; then nothing has changed.
-- Fails with WRONGTYPE if a key has another type, and if the log is ahead of the epoch, without changing anything.

local epoch = tonumber(redis.call('GET', KEYS[2]) or '0')
if ARGV[1] ~= '' and tonumber(ARGV[1]) ~= epoch then return 0 end
for i = 3, #ARGV, 3 do
  if (redis.call('HGET', KEYS[1], ARGV[i]) or '') ~= ARGV[i + 1] then return 0 end
end
local text = string.format('%.0f', epoch + 1)
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[2], text .. '-0', 'cells', '1')
redis.call('SET', KEYS[2], text)
for i = 3, #ARGV, 3 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 2])
end
return epoch + 1
