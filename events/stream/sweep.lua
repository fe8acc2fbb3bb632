-- Sweep: assign a due time to pending entries that have none. take.lua reads and indexes in one step, so
-- such an entry was read by another kind of consumer in the same group, or the index was lost. The due
-- time is that of an entry just read, which gives a live consumer time for a heartbeat.
--
-- KEYS    1 stream   2 due index
-- ARGV    1 group   2 visibility, ms; also the minimum idle time   3 ID to start at, "-" for the first
--         4 maximum number of entries, at least 2   5 1 to inspect them although there are as many due times as
--         pending entries; due times of entries that are no longer pending can hide missing ones
-- Returns {number repaired, ID of the last entry inspected}; the ID is empty at the end of the list.
-- Refuses with NOGROUP if the group or the stream does not exist.
if ARGV[5] ~= '1' and ARGV[3] == '-' and redis.call('XPENDING', KEYS[1], ARGV[1])[1] == redis.call('ZCARD', KEYS[2]) then
  return {0, ''}
end
local time = redis.call('TIME')
local due = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[2]))

local found = redis.call('XPENDING', KEYS[1], ARGV[1], 'IDLE', ARGV[2], ARGV[3], '+', ARGV[4])
local repaired = 0
for _, pending in ipairs(found) do
  repaired = repaired + redis.call('ZADD', KEYS[2], 'NX', due, pending[1])
end
if #found < tonumber(ARGV[4]) then return {repaired, ''} end
return {repaired, found[#found][1]}
