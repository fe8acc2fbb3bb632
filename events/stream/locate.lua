-- Locate: read the state of an entry in a group, and after which entry its result will be. groups.lua precedes
-- this script.
--
-- KEYS    1 stream   2 stream of results
-- ARGV    1 group   2 entry ID
-- Returns {state, last}
--         state: "queued"    in the stream, not yet read by the group
--                "pending"   read and not finished: owned by a consumer or parked
--                "finished"  read and finished, still in the stream
--                "unknown"   not in the stream
--         last: ID of the last result at that moment, "0-0" if there is none
-- Refuses with WRONGTYPE if a key has another type. Changes nothing.
local stream, results = KEYS[1], KEYS[2]
local group, id = ARGV[1], ARGV[2]

local last = redis.call('XREVRANGE', results, '+', '-', 'COUNT', 1)[1]
local function at(state) return {state, last and last[1] or '0-0'} end

local read = '0-0'
if redis.call('EXISTS', stream) == 1 then
  for _, info in ipairs(groups_of(stream)) do
    if info['name'] == group then
      read = info['last-delivered-id']
      if redis.call('XPENDING', stream, group, id, id, 1)[1] then return at('pending') end
    end
  end
end
if not redis.call('XRANGE', stream, id, id)[1] then return at('unknown') end
if precedes(read, id) then return at('queued') end
return at('finished')
